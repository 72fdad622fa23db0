"""What `ade train` and `ade predict` say where the tokenizer does not know the texts."""

import csv

import pytest

from ade.cli.notices import SAMPLE, UnknownTokenNotice, say_unknown_tokens
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


@pytest.mark.parametrize("chunk", [1, 7, 3 * SAMPLE])
@pytest.mark.parametrize("text", ["x y", "a b"])
def test_of_texts_in_chunks_it_is_said_once(text, chunk, capsys):
    notice = UnknownTokenNotice(word_tokenizer(["a", "b"]))
    for _ in range(3 * SAMPLE // chunk):
        notice.see([text] * chunk)
    assert capsys.readouterr().err.count(SAID) == (text == "x y")


def test_of_a_stream_it_is_said_at_once(capsys):
    notice = UnknownTokenNotice(word_tokenizer(["a"]))
    notice.see(["a a a a"])
    assert capsys.readouterr().err == ""
    notice.see(["a x x x"])
    assert capsys.readouterr().err.startswith(f"ade: 38{SAID}")
    notice.see(["x x x x"])
    assert capsys.readouterr().err == ""


def test_what_comes_after_the_first_thousand_texts_is_not_examined(capsys):
    notice = UnknownTokenNotice(word_tokenizer(["a"]))
    notice.see(["a"] * SAMPLE)
    notice.see(["x"] * 9 * SAMPLE)
    assert capsys.readouterr().err == ""


def test_training_rows_that_are_sorted_are_examined_to_the_end(capsys):
    tokenizer = word_tokenizer(["a"])
    say_unknown_tokens(tokenizer, ["a"] * 3 * SAMPLE + ["x"] * SAMPLE)
    assert capsys.readouterr().err.startswith(f"ade: 25{SAID}")
    say_unknown_tokens(tokenizer, ["a"] * 5 * SAMPLE + ["x"] * SAMPLE)
    assert capsys.readouterr().err == ""
