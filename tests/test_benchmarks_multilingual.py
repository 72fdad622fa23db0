"""Texts of many languages out of packages, and the benchmark of encoders of many languages."""

import gzip
import struct

import numpy as np
import pytest
import transformers

from ade.compression import encoder_table
from ade.errors import InputError
from benchmarks import (
    drawn_texts,
    multilingual,
    multilingual_texts,
    records,
    sections,
    translated_texts,
    written_texts,
)
from benchmarks.book import Book
from benchmarks.records import Run
from benchmarks.reproduce import reproduce
from benchmarks.tables import TABLES
from benchmarks.tables_sentence import LANGUAGES, SIMILARITY, multilingual_run
from tests.conftest import word_tokenizer

WORDS = [f"w{number}" for number in range(400)]
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
    quotations = folder / "fortunes-de" / "share" / "games" / "fortunes"
    words, symbols = folder / "dict" / "share", folder / "cldr" / "annotations"
    for made in (messages, pages, quotations, words, symbols):
        made.mkdir(parents=True)
    for language, name in (("en", "red apple"), ("sw", "tufaha jekundu"), ("pt", "ma\u00e7\u00e3")):
        picture = f'<annotation cp="A">x</annotation><annotation cp="A" type="tts">{name}</annotation>'
        (symbols / f"{language}.xml").write_text(picture, "utf8")
    (messages / "game.mo").write_bytes(catalogue(MESSAGES))
    (pages / "page.html").write_text("<p>Kissa istuu <b>katolla</b>.<pre>ls -l</pre></p><td>12 34</td>", "utf8")
    (quotations / "zitate").write_text("Der Anfang ist die Hälfte des Ganzen.\n%\nEile mit Weile.\n%\n", "utf8")
    text = "mbwa /mbwa/ <n>\n1. dog, hound\npaka <n>\n\nhouse cat\n"
    (words / "freedict-swh-eng.dict.dz").write_bytes(gzip.compress(text.encode()))
    return folder


def test_texts_are_sorted_by_language_and_without_markup(packages, tmp_path, capsys):
    multilingual_texts.main(packages, tmp_path / "out")
    assert "de: 7 texts" in capsys.readouterr().out
    lines = {file.stem: file.read_text("utf8").splitlines() for file in (tmp_path / "out").iterdir()}
    assert lines["fi"] == ["Kissa istuu katolla."]
    assert {"Der Anfang ist die Hälfte des Ganzen.", "Eile mit Weile.", "Datei öffnen"} < set(lines["de"])
    assert sorted(lines["sw"]) == ["mbwa", "paka"]
    assert {"hound", "house cat", "Open the file", "The dragon sleeps in its cave."} < set(lines["en"])
    assert "dog" not in lines["en"]  # too short
    assert lines["ja"] == []


def test_translations_stand_beside_their_originals(packages, tmp_path, capsys):
    translated_texts.main(packages, tmp_path / "out")
    assert "de: 3 messages" in capsys.readouterr().out
    lines = (tmp_path / "out" / "translations.tsv").read_text("utf8").splitlines()
    assert sorted(lines) == [
        "Let us go on without a sound, quickly!\tLasst uns schnell und ohne einen Laut weitergehen!",
        "Open the file\tDatei öffnen",
        "The dragon sleeps in its cave.\tDer Drache schläft in seiner Höhle.",
        "hound\tmbwa",
        "house cat\tpaka",
        "red apple\ttufaha jekundu",
    ]


def test_sentences_of_a_text():
    text = "Open the file %s first. Then click <b>OK</b>! Siehe https://example.org für mehr; das ist alles."
    assert list(multilingual_texts.sentences(text)) == ["Open the file first.", "Then click OK !"]
    assert next(multilingual_texts.sentences("猫は屋根の上に座っています。" * 5)) == "猫は屋根の上に座っています。"
    assert list(multilingual_texts.sentences("12 : 45 == 3")) == []


def test_drawn_texts_have_words_of_the_language_and_parts_of_its_texts(tmp_path):
    texts = ["mbwa paka", "nyumba ya bibi yangu ni kubwa sana sana kabisa"]  # Swahili, of which there is no list
    (tmp_path / "sw.txt").write_text("\n".join(texts), "utf8")
    (tmp_path / "de.txt").write_text("Kurz.\n", "utf8")
    drawn_texts.main(tmp_path)
    first = {file.name: file.read_text("utf8") for file in tmp_path.iterdir()}
    drawn_texts.main(tmp_path)  # neither drawn from its own texts nor from other ones the second time
    assert {file.name: file.read_text("utf8") for file in tmp_path.iterdir()} == first

    swahili, german = (first[f"{language}.drawn.txt"].splitlines() for language in ("sw", "de"))
    assert len(swahili) == drawn_texts.OF_WORDS + drawn_texts.PARTS
    assert {word for text in swahili for word in text.lower().rstrip(".").split()} == set(" ".join(texts).split())
    parts = swahili[drawn_texts.OF_WORDS :]
    assert all(part.lower() in texts[1] for part in parts)
    assert any(part.endswith("kabisa") for part in parts)
    assert any(part.startswith("Nyumba") for part in parts)
    with pytest.raises(InputError, match="sw: neither"):
        drawn_texts.words_of("sw", [])
    assert len(german) == drawn_texts.OF_WORDS  # no text is long enough for parts
    assert len({word for text in german for word in text.split()}) > 10_000


def test_parts_of_a_language_without_spaces_are_characters():
    text = "\u732b\u306f\u5c4b\u6839\u306e\u4e0a\u306b\u5ea7\u3063\u3066\u3044\u307e\u3059" * 2
    parts = drawn_texts.parts_of("ja", [text, "\u732b"], 50, np.random.default_rng(0))
    assert all(part in text and 5 <= len(part) < 16 for part in parts)
    assert len(set(parts)) > 20


def test_an_encoder_is_measured_beside_its_teacher(places, monkeypatch):
    monkeypatch.setattr(encoder_table, "CODED_FROM", 100)
    with pytest.raises(InputError, match="multilingual_texts"):
        multilingual.texts_of(places, 0)
    folder = places.data / "multilingual"
    folder.mkdir()
    texts = [" ".join(WORDS[(row * 7 + place) % 400] for place in range(5)) for row in range(60)]
    for language in ("de", "en"):
        (folder / f"{language}.txt").write_text("\n".join(texts) + "\n", "utf8")
    with pytest.raises(InputError, match="drawn_texts"):
        multilingual.texts_of(places, 0)
    for language in ("de", "en"):
        (folder / f"{language}.drawn.txt").write_text("w1 w2\n", "utf8")
    assert len(multilingual.texts_of(places, 10)) == 22
    with pytest.raises(InputError, match=r"de\.written\.txt: .*written_texts"):
        multilingual.texts_of(places, 10, written=True)
    for language in ("de", "en"):
        (folder / f"{language}.written.txt").write_text("w3 w4\nw5 w6\n", "utf8")
    assert len(multilingual.texts_of(places, 10, written=True)) == 26
    assert len(multilingual.texts_of(places, 10)) == 22

    teacher = places.teachers / "multilingual-e5-small"
    config = transformers.BertConfig(
        vocab_size=402, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    transformers.BertModel(config).save_pretrained(teacher)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(WORDS), unk_token="[UNK]", pad_token="[PAD]"
    )
    tokenizer.save_pretrained(teacher)
    (places.data / "tatoeba").mkdir()
    different = [f"{WORDS[row]} {WORDS[row + 1]} {WORDS[-row]}" for row in range(300)]
    for name in ("deu", "eng"):
        (places.data / "tatoeba" / f"deu-eng.{name}").write_text("\n".join(different) + "\n", "utf8")

    planned = multilingual_run(size="60kB", steps=3)
    run = Run(planned.table, planned.kind, {**planned.settings, "languages": ["deu"], "similarity": []})
    assert reproduce([run], places, places.work / "results") == []
    (record,) = records.load(places.work / "results")
    figures = record["figures"]
    assert figures["teacher"]["tatoeba"]["deu"] == 100.0  # of the same texts
    assert figures["mean"]["tatoeba"]["deu"] > 90
    assert figures["encoder"]["tatoeba"]["deu"] > 90
    assert figures["bytes"] < 60_000
    assert record["data"] == {"texts": 122, "different": 61}

    lines = "".join(f"{texts[row]}\t{different[row]}\n" for row in range(40))
    with pytest.raises(InputError, match="translated_texts"):
        multilingual.first_lines(folder / "translations.tsv", 30, places.work)
    (folder / "translations.tsv").write_text(lines, "utf8")
    told, untold = (
        Run(run.table, run.kind, {**run.settings, "translations": 30, "told": told}) for told in (True, False)
    )
    assert reproduce([told, untold], places, places.work / "results") == []
    both = {record["settings"].get("told"): record for record in records.load(places.work / "results")}
    assert both[True]["data"] == {"texts": 122, "different": 91}
    assert both[False]["data"] == {"texts": 182, "different": 91}
    assert both[True]["figures"]["validation"] != both[False]["figures"]["validation"]


def test_the_table_has_a_row_for_each_encoder(monkeypatch):
    run = next(iter(TABLES["multilingual"]().values()))[""][0]
    tasks = {"tatoeba": dict.fromkeys(LANGUAGES, 50.0), "stsb": dict.fromkeys(SIMILARITY, 70.0)}
    figures = {"encoder": tasks, "teacher": tasks, "mean": tasks, "bytes": 15_000_000}
    book = Book([])
    monkeypatch.setattr(book, "of", lambda runs: [{"figures": figures}] if runs == [run] else [])
    rows = sections.multilingual(book).splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == [
        "multilingual-e5-small", "mean of its table", "ADE, one layer, 16 MB",
    ]  # fmt: skip
    assert "| 50.0 |" in rows[-1]


def test_written_texts_begin_with_words_of_the_language_and_are_whole(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))
    words = ["Haus", "ist", "gross", ".", "!"]
    shape = {"vocab_size": 7, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**shape, intermediate_size=16, bos_token_id=0, eos_token_id=6)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "decoder")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(words), unk_token="[UNK]", bos_token="[PAD]", eos_token="!"
    )
    tokenizer.save_pretrained(tmp_path / "decoder")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "sw.txt").write_text("haus\n", "utf8")
    for _ in range(2):  # the second time, what was written is not read
        written_texts.main(tmp_path / "decoder", folder, count=20, device="cpu")
    lines = (folder / "sw.written.txt").read_text("utf8").splitlines()
    assert f"sw: {len(lines):,} written sentences" in capsys.readouterr().out
    assert sorted(file.name for file in folder.iterdir()) == ["sw.txt", "sw.written.txt"]
    assert len(lines) == len(set(lines)) > 0
    assert any(line.startswith("Haus") for line in lines)
    assert written_texts.whole_sentences(["Das ist gut. Das ist " + "lang " * 12, "Gut so."]) == [
        "Das ist gut.",
        "Gut so.",
    ]
