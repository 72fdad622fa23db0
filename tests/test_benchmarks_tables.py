"""Tables and pages: bold cells, captions, and that every page says what the records say."""

from dataclasses import replace

import pytest

from ade.errors import InputError
from benchmarks import plots, records, report
from benchmarks.records import Run
from benchmarks.tables import Book, Figure, grid, listing, markdown, nbytes, parts, percent

ACCURACY = Figure("accuracy", "accuracy", percent, better=1)
SECONDS = Figure("seconds", "cost.seconds", "{:.0f}".format, better=-1)


def runs_of(name, count):
    return [Run("ade", {"name": name, "seed": seed}) for seed in range(count)]


def made(run, identity=None, jobs=1, **figures):
    record = {"key": run.key, "figures": figures, "device": {"kind": "cpu", "name": "A"}, "jobs": jobs}
    return record if identity is None else {**record, "identity": {"sources": identity, "packages": "p", "read": {}}}


def test_the_best_and_what_is_within_one_deviation_of_it_are_bold():
    """By hand: best 90.0 ± 1.0; 89.5 is within one deviation, 88.9 is not, whatever its own deviation."""
    rows = {name: runs_of(name, 3) for name in ("best", "near", "far")}
    values = {"best": (0.89, 0.90, 0.91), "near": (0.895, 0.895, 0.895), "far": (0.80, 0.889, 0.978)}
    book = Book(
        [made(run, accuracy=value) for name in rows for run, value in zip(rows[name], values[name], strict=True)]
    )
    table = grid("x", {"row": rows}, ACCURACY, caption="What it is.")
    assert markdown(table, book).splitlines() == [
        "| x | best | near | far |",
        "| --- | ---: | ---: | ---: |",
        "| row | **90.00 ± 1.00** | **89.50 ± 0.00** | 88.90 ± 8.90 |",
        "",
        "What it is. (A; 9 of 9 runs recorded before identities.)",
    ]
    alone = grid("x", {"row": {"best": rows["best"]}}, ACCURACY)
    assert "**" not in markdown(alone, book)  # nothing to be better than


def test_columns_are_compared_apart_and_less_may_be_better():
    rows = {name: runs_of(name, 1) for name in ("one", "two", "none")}
    book = Book(
        [
            made(rows["one"][0], accuracy=0.5, cost={"seconds": 3}),
            made(rows["two"][0], accuracy=0.6, cost={"seconds": 4}),
        ]
    )
    lines = markdown(listing("", rows, [ACCURACY, SECONDS, Figure("size", "bytes", nbytes)]), book).splitlines()
    assert lines[0] == "|  | accuracy | seconds |"  # no size is known
    assert lines[2:4] == ["| one | 50.00 | **3** |", "| two | **60.00** | 4 |"]
    assert lines[4] == ""  # a row without records is left out


def test_parts_of_a_record_are_rows_and_given_rows_are_not_compared():
    run = Run("speed")
    book = Book([made(run, jobs=3, a={"accuracy": 0.5}, b={"accuracy": 0.25})])
    table = replace(parts("", run, {"first": "a", "second": "b"}, [ACCURACY]), given={"paper": ["99.00"]})
    text = markdown(table, book)
    assert "| first | **50.00** |\n| second | 25.00 |\n| paper | 99.00 |" in text
    assert text.endswith("(A, 3 at once; 1 of 1 runs recorded before identities.)")


def test_a_table_names_its_state_and_refuses_two():
    rows = {name: runs_of(name, 1) for name in ("old", "new")}
    table = listing("", rows, [ACCURACY])
    old, new = made(rows["old"][0], accuracy=0.5), made(rows["new"][0], "abcdef0123", accuracy=0.6)
    text = markdown(table, Book([old, new]))
    assert "| new | **60.00** |" in text
    assert text.endswith("(A; sources abcdef01; 1 of 2 runs recorded before identities.)")
    with pytest.raises(InputError, match="two states"):
        markdown(table, Book([made(rows["old"][0], "0123", accuracy=0.5), new]))


def test_pages_follow_the_records():
    empty = report.pages([])
    assert "| --- |" not in empty[report.PAGE]
    assert report.NOT_MEASURED in empty[report.ROOT / "README.md"]
    found = records.load()
    page = report.pages(found)[report.PAGE]
    for name in ("classification_news", "accuracy", "compression", "throughput"):
        assert f"\n## {name}\n" in page
    changed = [{**each, "figures": {**each["figures"], "accuracy": 0.12345}} for each in found if each["kind"] == "ade"]
    assert "12.35" in report.pages(changed)[report.PAGE]
    assert report.stale_pages(found) == {}  # and so the pages are current


def test_marked_parts_are_filled_and_the_rest_stays():
    page = "before\n<!-- begin a -->\nold\n<!-- end a -->\nafter\n"
    assert report.fill(page, "a", "new") == page.replace("old", "new")


def test_every_plot_stands_beside_a_table_and_is_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is of the extra 'bench'")
    assert set(plots.PLOTS) == set(plots.BESIDE.values())
    monkeypatch.setattr(plots, "FOLDER", tmp_path)
    plots.draw(Book(records.load()))
    assert {path.stem for path in tmp_path.iterdir()} == set(plots.PLOTS)
    plots.draw(Book([]))
    assert list(tmp_path.iterdir()) == []
