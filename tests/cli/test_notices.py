"""What `ade train` and `ade predict` say where the tokenizer does not know the texts."""

import csv

import pytest

from ade.cli.notices import SAMPLE, saying_unknown_tokens
from tests.conftest import topic_texts, word_tokenizer

CHINESE = ["电池 很 差 goal", "相机 非常 好 bank", "屏幕 很 好 orbit", "价格 太 高 market"]
SAID = "% of the tokens of these texts are unknown or single bytes: "


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("languages")
    english = list(zip(*topic_texts(60, 0), strict=True))
    chinese = [(text, "ab"[i % 2]) for i, text in enumerate(CHINESE * 10)]
    for name, rows in (("english.csv", english), ("chinese.csv", chinese)):
        with open(folder / name, "w", newline="", encoding="utf8") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return folder


def test_training_says_it_before_and_predicting_once(ade, data, teacher_folder, tmp_path):
    for name, said in (("english.csv", False), ("chinese.csv", True)):
        out = tmp_path / name.removesuffix(".csv")
        status, _, errors = ade("train", data / name, "--teacher", teacher_folder, "--out", out, "--steps", 5)
        assert status == 0, errors
        assert errors.count(SAID) == said
        assert ("75% of" in errors and "--teacher" in errors) is said

    for texts, said in ((CHINESE * 200, True), (["the coach and the team"] * 200, False)):
        (tmp_path / "texts.txt").write_text("\n".join(texts), "utf8")
        status, printed, errors = ade("predict", tmp_path / "english", tmp_path / "texts.txt")
        assert (status, printed.count("\n")) == (0, len(texts))
        assert errors.count(SAID) == errors.count("ade:") == said


def test_a_tagger_is_trained_on_words_that_are_joined(ade, teacher_folder, tmp_path):
    sentences = ["电池 O\n很 O\ngoal B-X\n\n", "相机 O\n好 O\nteam B-X\n\n"] * 6
    (tmp_path / "words.conll").write_text("".join(sentences), "utf8")
    words = ("train", tmp_path / "words.conll", "--teacher", teacher_folder, "--out", tmp_path / "m", "--steps", 2)
    status, _, errors = ade(*words)
    assert status == 0, errors
    assert errors.count(f"67{SAID}") == 1


@pytest.mark.parametrize("count", [1, 99, 100, 101, SAMPLE, SAMPLE + 1, 3 * SAMPLE])
@pytest.mark.parametrize("text", ["x y", "a b"])
def test_of_a_stream_it_is_said_once_and_every_text_passes(text, count, capsys):
    texts = [text] * count
    assert list(saying_unknown_tokens(word_tokenizer(["a", "b"]), iter(texts))) == texts
    assert capsys.readouterr().err.count(SAID) == (text == "x y")


def test_of_a_stream_that_does_not_end_it_is_said_after_a_hundred(capsys):
    stream = saying_unknown_tokens(word_tokenizer(["a"]), iter(["x"] * 1000))
    for _ in range(100):
        next(stream)
    assert capsys.readouterr().err == ""
    next(stream)
    assert capsys.readouterr().err.startswith(f"ade: 100{SAID}")


def test_rows_that_are_sorted_are_examined_to_the_end(capsys):
    from ade.cli.notices import say_unknown_tokens

    tokenizer = word_tokenizer(["a"])
    assert say_unknown_tokens(tokenizer, ["a"] * 3 * SAMPLE + ["x"] * SAMPLE)
    assert capsys.readouterr().err.startswith(f"ade: 25{SAID}")
    assert not say_unknown_tokens(tokenizer, ["a"] * 5 * SAMPLE + ["x"] * SAMPLE)
