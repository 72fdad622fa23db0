"""`ade evaluate`: metrics of each label, confusions, tables that fit, and the report as a page."""

import csv
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ade.cli import display
from ade.cli.evaluation import MAX_CLASSES, tables
from ade.evaluation import compare
from ade.evaluation_report import MAX_MATRIX, report_page
from tests.conftest import topic_texts


@pytest.fixture
def rows(tmp_path):
    """Rows of which one must be predicted wrong: its text has two labels."""
    texts, labels = topic_texts(58, 3)
    texts += ["goal <script>alert('&')</script>"] * 2
    labels += ["sport", "money"]
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    return tmp_path / "rows.csv"


def test_labels_and_confusions_are_shown(ade, trained, rows):
    status, out, errors = ade("evaluate", trained, rows, "--json")
    found = json.loads(out)
    assert (status, errors) == (0, "")
    assert [each["label"] for each in found["classes"]] == ["money", "space", "sport"]
    assert sum(each["n"] for each in found["classes"]) == found["n"] == 60
    wrong = sum(each["n"] for each in found["confused"])
    assert wrong == 60 - sum(count for true, predicted, count in found["confusion"] if true == predicted) > 0

    _, out, _ = ade("evaluate", trained, rows)
    assert f"off by {100 * found['calibration_error']:.1f} on average" in out
    assert re.search(r"^label +precision +recall +F1 +texts$", out, re.MULTILINE)
    assert re.search(r"^most frequent confusions +predicted +times +of$", out, re.MULTILINE)
    for each in found["classes"]:
        numbers = (f"{100 * each[name]:.2f}" for name in ("precision", "recall", "f1"))
        assert re.search(rf"^{each['label']} +{' +'.join(numbers)} +{each['n']}$", out, re.MULTILINE)


@pytest.mark.parametrize("count", [2, 8, 30])
def test_tables_fit_and_no_number_is_cut(count, capsys):
    names = [f"{'a long name of a label ' * 4}{i}" for i in range(count)]
    generator = np.random.default_rng(0)
    result = compare(generator.integers(0, count, 4_000_000), generator.integers(0, count, 4_000_000), names)
    display.show({}, False, *tables(result))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 100
    assert "…" not in out
    shown = sorted(result.classes, key=lambda each: each.f1)[:MAX_CLASSES]
    for each in (*shown[:3], *result.confused()[:3]):
        assert f"{each.n:,}" in out


class Page(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)


def test_the_report_shows_matrix_calibration_and_mistakes(ade, trained, rows, tmp_path):
    status, out, errors = ade("evaluate", trained, rows, "--report", tmp_path / "report.html", "--json")
    assert status == 0
    assert errors.startswith(f"ade: {tmp_path / 'report.html'}: the report")
    page = Page((tmp_path / "report.html").read_text("utf8"))
    assert not {"script", "link", "img"} & {tag for tag, _ in page.tags}  # self-contained, and texts are escaped
    assert any("<script>alert('&')</script>" in text for text in page.texts)
    assert f"{100 * json.loads(out)['accuracy']:.2f}" in page.texts
    for heading in ("Labels", "Confusion matrix", "Calibration", "Worst mistakes"):
        assert heading in page.texts

    status, _, errors = ade("evaluate", trained, rows, "--report", tmp_path / "report.html")
    assert (status, "already exists" in errors) == (2, True)
    words = ("--report", tmp_path / "report.html", "--overwrite", "--quiet")
    assert ade("evaluate", trained, rows, *words)[::2] == (0, "")


def test_the_worst_mistake_comes_first_and_many_labels_are_listed():
    names = tuple(f"<{i}>" for i in range(MAX_MATRIX + 1))
    truth, predicted = np.array([0, 1, 2, 3]), np.array([0, 2, 3, 4])
    result = compare(truth, predicted, names)
    object.__setattr__(result, "predicted", predicted)
    object.__setattr__(result, "probability", np.array([0.99, 0.6, 0.9, 0.7], np.float32))
    page = report_page("a & b", result, ["no mistake", "third", "first", "second"], truth)
    texts = Page(page).texts
    places = [texts.index(text) for text in ("first", "second", "third")]
    assert places == sorted(places)
    assert "no mistake" not in texts
    assert "Most frequent confusions" in texts
    assert "<2>" in texts
