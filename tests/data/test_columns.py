"""Columns are found by their names, else by their values, and a missing header is named."""

import pandas as pd
import pytest

from ade.data.columns import find_columns, find_text_column
from ade.data.records import texts_of
from ade.data.sources import as_dataset, load_dataset
from ade.errors import InputError


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("review,sentiment", ("review", "sentiment")),
        ("sentence,label", ("sentence", "label")),
        ("text,intent", ("text", "intent")),
        ("label,text", ("text", "label")),
        ("id,title,body,date,category", ("title", "category")),  # the first that is like a text
        ("text,topic,sentiment", ("text", "sentiment")),  # the last that is like a label
        ("text,label,label_text", ("text", "label")),
        (",Review Text,Rating", ("Review Text", "Rating")),  # as pandas writes its index
        ("tweetText,class_id", ("tweetText", "class_id")),
        ("review_score,review_text", ("review_text", "review_score")),
        ("Comments,Categories", ("Comments", "Categories")),
        ("satz,label", ("satz", "label")),  # of two columns the other one
        ("text,art", ("text", "art")),
    ],
)
def test_columns_are_found_by_their_names(names, found):
    assert find_columns("a.csv", names.split(","), None, None) == found


def test_what_is_given_decides():
    names = ["title", "body", "topic", "sentiment"]
    assert find_columns("a.csv", names, "body", None) == ("body", "sentiment")
    assert find_columns("a.csv", names, None, "topic") == ("title", "topic")
    assert find_columns("a.csv", ["text", "label", "n"], "label", "text") == ("label", "text")


def test_what_cannot_be_found_names_the_option():
    with pytest.raises(InputError, match=r"a.csv: which column holds the texts\? .* n, m, label; .*--text-column"):
        find_columns("a.csv", ["n", "m", "label"], None, None)
    with pytest.raises(InputError, match=r"which column holds the labels\? .*--label-column"):
        find_columns("a.csv", ["text", "n", "m"], None, None)
    with pytest.raises(InputError, match=r"no column 'mood', the columns are text, label \(--label-column\)"):
        find_columns("a.csv", ["text", "label"], None, "mood")
    with pytest.raises(InputError, match="both the texts and the labels"):
        find_columns("a.csv", ["text", "label"], "label", "label")
    with pytest.raises(InputError, match="--text-column"):
        find_text_column("a.csv", ["n", "m"], None)
    assert find_text_column("a.csv", ["n"], None) == "n"


def rows_of(*rows):
    names, *values = (row.split(";") for row in rows)
    return names, lambda: [dict(zip(names, row, strict=True)) for row in values]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (("Satz;Art", "Der Akku ist sehr schwach;negativ", "Gut;positiv"), ("Satz", "Art")),
        (("Art;Satz", "sehr gut;Das Bild ist hell und scharf"), ("Satz", "Art")),
        (("文;種類", "この電話の電池はとても悪いです;否定", "カメラはとても良い;肯定"), ("文", "種類")),
        (("Satz;Note", "ok;0.123456", "gut;1.5"), ("Satz", "Note")),  # a number is no text
    ],
)
def test_two_columns_are_told_by_their_values(rows, found):
    names, sample = rows_of(*rows)
    assert find_columns("a.csv", names, None, None, sample) == found
    assert find_text_column("a.csv", names, None, sample) == found[0]


@pytest.mark.parametrize("rows", [("n;m", "1;2"), ("n;m", "abc;abd"), ("n;m",), ("n;m;k", "a text of words;x;y")])
def test_columns_that_values_do_not_tell_are_asked_for(rows):
    names, sample = rows_of(*rows)
    with pytest.raises(InputError, match=r"which column holds the texts\? .*--text-column"):
        find_columns("a.csv", names, None, None, sample)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "frame", "parquet"])
def test_no_row_is_lost_by_looking_at_the_first_ones(kind, tmp_path):
    frame = pd.DataFrame({"Satz": [f"ein Satz mit Wort {i}" for i in range(300)], "Art": ["a", "b", "c"] * 100})
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        frame.to_csv(path, sep=";", index=False)
    elif kind == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(path)
    found = as_dataset(frame if kind == "frame" else path)
    assert list(found.texts) == list(frame.Satz) == list(texts_of(frame if kind == "frame" else path))
    assert found.columns == ("Satz", "Art")


def test_a_first_row_without_a_header_is_not_taken_for_one(tmp_path):
    (tmp_path / "a.csv").write_text("3,a good review\n1,a bad review\n")
    assert list(load_dataset(tmp_path / "a.csv").texts) == ["a good review", "a bad review"]
    for rows in (
        "I did not like this long and boring review,neg\nI did,pos\n",
        "not good,neg,1\nI did like it,pos,2\nIt was long,neg,3\n",
    ):
        (tmp_path / "a.csv").write_text(rows)
        with pytest.raises(InputError, match=r"the first row is data, not a header \('.*write text,label above"):
            load_dataset(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("What did you like about our product?,Art\nThe long life of it,pos\n")
    named = load_dataset(tmp_path / "a.csv", text_column="What did you like about our product?")
    assert (len(named), named.columns[1]) == (1, "Art")
