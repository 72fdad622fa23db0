"""Texts of many languages out of packages, and texts that nobody wrote."""

import gzip
import struct

import numpy as np
import pytest

from ade.errors import InputError
from benchmarks import corpora

MESSAGES = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "Open the file": "Datei \u00f6ffnen",
    "The dragon sleeps in its cave. Let us go on without a sound, quickly!": (
        "Der Drache schl\u00e4ft in seiner H\u00f6hle. Lasst uns schnell und ohne einen Laut weitergehen!"
    ),
    "There are two sentences in this message. Its translation has but one.": "Zwei Saetze werden zu einem einzigen.",
    "Settings": "Settings",
    "noun: a cat": "Katze",
}


def catalogue(messages):
    """The bytes of a message catalogue (GNU .mo)."""
    texts = [*(key.encode() for key in sorted(messages)), *(messages[key].encode() for key in sorted(messages))]
    count, offset, places = len(messages), 28 + 16 * len(messages), b""
    for text in texts:
        places += struct.pack("<2I", len(text), offset)
        offset += len(text) + 1
    return struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0) + places + b"\0".join(texts) + b"\0"


@pytest.fixture
def packages(tmp_path):
    """A catalogue, a manual, quotations and a dictionary, as packages have them."""
    folder = tmp_path / "packages"
    messages = folder / "game" / "share" / "locale" / "de" / "LC_MESSAGES"
    pages = folder / "handbook" / "share" / "html" / "fi-FI"
    words = folder / "dict" / "share"
    for made in (messages, pages, words):
        made.mkdir(parents=True)
    (messages / "game.mo").write_bytes(catalogue(MESSAGES))
    (pages / "page.html").write_text("<p>Kissa istuu <b>katolla</b>.<pre>ls -l</pre></p><td>12 34</td>", "utf8")
    text = "mbwa /mbwa/ <n>\n1. dog, hound\npaka <n>\n\nhouse cat\n"
    (words / "freedict-swh-eng.dict.dz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_texts_are_sorted_by_language_and_without_markup(packages, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(corpora, "OF_WORDS", 20)
    monkeypatch.setattr(corpora, "PARTS", 10)
    corpora.texts(packages, tmp_path / "out")
    assert "de.txt: 5 lines\nde.drawn.txt: 30 lines" in capsys.readouterr().out
    lines = {file.stem: file.read_text("utf8").splitlines() for file in (tmp_path / "out").glob("??.txt")}
    assert lines["fi"] == ["Kissa istuu katolla."]
    assert "Datei öffnen" in lines["de"]
    assert sorted(lines["sw"]) == ["mbwa", "paka"]
    assert {"hound", "house cat", "Open the file", "The dragon sleeps in its cave."} < set(lines["en"])
    assert "dog" not in lines["en"]  # too short
    assert lines["ja"] == []


def test_sentences_of_a_text():
    text = "Open the file %s first. Then click <b>OK</b>! Siehe https://example.org für mehr; das ist alles."
    assert list(corpora.sentences(text)) == ["Open the file first.", "Then click OK !"]
    assert next(corpora.sentences("猫は屋根の上に座っています。" * 5)) == "猫は屋根の上に座っています。"
    assert list(corpora.sentences("12 : 45 == 3")) == []


def test_drawn_texts_have_words_of_the_language_and_parts_of_its_texts():
    lines = ["mbwa paka", "nyumba ya bibi yangu ni kubwa sana sana kabisa"]  # Swahili, of which there is no list
    words, parts = (make("sw", lines, 1000, np.random.default_rng(0)) for make in (corpora.of_words, corpora.parts_of))
    assert {word for text in words for word in text.lower().rstrip(".").split()} == set(" ".join(lines).split())
    assert all(part.lower() in lines[1] for part in parts)
    assert any(part.endswith("kabisa") for part in parts)
    assert any(part.startswith("Nyumba") for part in parts)
    german = corpora.of_words("de", [], 4000, np.random.default_rng(0))
    assert len({word for text in german for word in text.split()}) > 3000
    assert corpora.parts_of("de", ["Kurz."], 9, np.random.default_rng(0)) == []  # no text is long enough
    with pytest.raises(InputError, match="sw: neither"):
        corpora.words_of("sw", [])


def test_parts_of_a_language_without_spaces_are_characters():
    text = "\u732b\u306f\u5c4b\u6839\u306e\u4e0a\u306b\u5ea7\u3063\u3066\u3044\u307e\u3059" * 2
    parts = corpora.parts_of("ja", [text, "\u732b"], 50, np.random.default_rng(0))
    assert all(part in text and 5 <= len(part) < 16 for part in parts)
    assert len(set(parts)) > 20
