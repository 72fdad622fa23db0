"""Columns are found by their names, else by their values, and a missing header is named."""

import pytest

from ade.data.columns import find_columns, find_text_column
from ade.data.sources import load_dataset
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


def test_a_first_row_without_a_header_is_not_taken_for_one(tmp_path):
    (tmp_path / "a.csv").write_text("3,a good review\n1,a bad review\n")
    assert list(load_dataset(tmp_path / "a.csv").texts) == ["a good review", "a bad review"]
    for rows in (
        "I did not like this long and boring review,neg\nI did,pos\n",
        "not good,neg,1\nI did like it,pos,2\nIt was long,neg,3\n",
    ):
        (tmp_path / "a.csv").write_text(rows)
        with pytest.raises(InputError, match=r"which column holds the .*; call it '(text|label)'"):
            load_dataset(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("What did you like about our product?,Art\nThe long life of it,pos\n")
    named = load_dataset(tmp_path / "a.csv", text_column="What did you like about our product?")
    assert (len(named), named.columns[1]) == (1, "Art")
