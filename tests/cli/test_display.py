"""Tables for people: nothing is cut where they are too wide."""

from pathlib import Path

import pytest

from ade.cli import display
from ade.inspector.words import AnchorUse, TokenAnchors
from ade.integrations.onnx_export import ExportedFile


@pytest.fixture
def printed(capsys):
    def lines(draw, *values):
        draw(display.console(), *values)
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        assert "…" not in out
        return out

    return lines


def test_a_long_path_is_wrapped(printed):
    folder = str(Path("/home") / "x".join(map(str, range(60))))
    sizes = {"bytes": 1_234_567, "tokenizer_bytes": 345_678}
    out = printed(display.print_training, {"model": folder, "steps": 12_345, "dev_accuracy": 0.98765, **sizes})
    assert folder in "".join(word for word in out.split() if word != "model")  # the heading beside it
    for number in ("12,345", "98.77", "1.2 MB", "345.7 kB"):
        assert number in out


def test_numbers_of_an_export_are_whole(printed):
    files = [ExportedFile("model.int8.onnx", 123_456_789, 1.23e-5, 9.87, 0.999)]
    out = printed(display.print_export, files, True)
    for number in ("123.5 MB", "1.2e-05", "0.0001%", "99.9%"):
        assert number in out


def test_numbers_of_anchors_stay_whole_beside_long_words(capsys):
    words = tuple(f"derivatives{number}" for number in range(9))
    uses = (AnchorUse(450, 0.163, words, -0.171), AnchorUse(47, -0.26, words, 0.2))
    display.print_words(display.console(), [TokenAnchors("spring", "spring", uses)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for whole in ("anchor", "weight", "+0.163", "-0.171", "-0.260", "…"):
        assert whole in out
