"""Tags of words: files, the label of each word's first token, learning, folders, and metrics of spans."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import pipeline

from ade.data.sources import load_dataset
from ade.data.tags import UNLABELLED, TaggedDataset, encode_tagged
from ade.decision import Tagged
from ade.errors import InputError
from ade.evaluation import evaluate
from ade.settings import STRONG, Architecture
from ade.trained_model import Tagger, load
from ade.training.loop import fit_model
from tests.conftest import FILLER, WORDS

QUICK = replace(STRONG, steps=400, batch_size=16, learning_rate=5e-3, token_dropout=0.1, device="cpu")


def sentences(rows: int, seed: int) -> str:
    """Two words of a topic are a span of it: one that begins such a span, one that goes on with it."""
    generator = np.random.default_rng(seed)
    lines = ["-DOCSTART- -X- O", ""]
    for _ in range(rows):
        for _ in range(int(generator.integers(1, 4))):
            topic = str(generator.choice(list(WORDS)))
            lines += [f"{word} NN O" for word in generator.choice(FILLER, int(generator.integers(0, 3)))]
            first, second = generator.choice(WORDS[topic][:3]), generator.choice(WORDS[topic][3:])
            lines += [f"{first} NN B-{topic}", f"{second} NN I-{topic}"]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tagged")
    (made / "train.conll").write_text(sentences(300, 0))
    (made / "test.conll").write_text(sentences(60, 1))
    return made


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_tags_are_learned_and_come_back_from_a_folder(attend, codebook, folder, tmp_path):
    architecture = Architecture(attend=attend, heads=2)
    tagger = Tagger(fit_model(codebook, load_dataset(folder), None, QUICK, architecture, tmp_path / "model"))
    held = load_dataset(folder, "test")
    metrics = evaluate(tagger, held)
    assert metrics.accuracy > 0.9
    assert metrics.f1 > 0.85
    assert metrics.words == sum(map(len, held.sentences))
    loaded = load(tmp_path / "model")
    assert loaded.predict(held.sentences) == tagger.predict(held.sentences)
    sentence = "goal match the bank market"
    (own,) = loaded.predict([sentence])
    assert loaded.tagged([sentence])[0] == Tagged(sentence.split(), own)
    answers = pipeline("token-classification", str(tmp_path / "model"))(sentence)
    assert [each["entity"] for each in answers] == [tag for tag in own if tag != "O"]


def pieces(kind: str) -> Tokenizer:
    """Tokenizers that cut words: WordPiece, byte-level BPE, and one with ▁ for spaces."""
    if kind == "wordpiece":
        known = {"[UNK]": 0, "un": 1, "##likely": 2, "bank": 3, "##s": 4, "in": 5, "New": 6, "York": 7, "é": 8}
        tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
    letters = sorted(pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else set("▁unlikelybanksinNewYorké"))
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "metaspace"])
def test_a_words_tag_is_its_first_tokens(kind, tmp_path):
    (tmp_path / "a.conll").write_text("unlikely A\nbanks B\nin C\nNew D\nYork E\né F\n\nbanks B\n")
    data = load_dataset(tmp_path / "a.conll")
    texts, labels = encode_tagged(pieces(kind), data, 64)
    assert len(texts) == 2
    for i, tags in enumerate(data.tags):
        part = slice(texts.offsets[i], texts.offsets[i + 1])
        own = labels.ids[part][labels.ids[part] != UNLABELLED]
        assert own.tolist() == tags.tolist()
    assert labels.ids[0] == data.tags[0][0] or labels.ids[1] == data.tags[0][0]  # ▁ may stand alone before a word


def test_comments_tabs_and_marks_of_byte_order(tmp_path):
    (tmp_path / "a.conll").write_text(
        "\ufeff# text = goal match\n# id 33 domain=train\ngoal\tNN\tO\nNew York\tNN\tB-LOC\n#\tNN\tO\n\n"
        "# one more\ngoal\tNN\tO\n"
    )
    data = load_dataset(tmp_path / "a.conll")
    assert [list(words) for words in data.sentences] == [["goal", "New York", "#"], ["goal"]]
    assert data.names == ("B-LOC", "O")
    texts, labels = encode_tagged(pieces("bytes"), data, 64)
    own = labels.ids[: texts.offsets[1]]
    assert own[own != UNLABELLED].tolist() == [1, 0, 1]


def test_files_that_cannot_be_read_are_refused(tmp_path):
    for name, content, message in (
        ("a.conll", b"goal\n", "line 1: a word without a tag"),
        ("b.bio", b"\n\n", "has no sentence"),
        ("c.iob", b"\xff\xfe O", "not UTF-8"),
        ("d.xml", b"goal\tO\n", "with tags .conll"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_dataset(tmp_path / name)
    with pytest.raises(InputError, match="has no dev file"):
        load_dataset(tmp_path, "dev")
    with pytest.raises(InputError, match="not trained on: O"):
        TaggedDataset([("w0",)], [np.zeros(1, np.int64)], ("O",)).relabelled(["x"])


def test_from_the_shell(codebook, folder, tmp_path, ade):
    codebook.save(tmp_path / "codebook")
    train = ["train", folder, "--from", tmp_path / "codebook", "--out", tmp_path / "model", "--device", "cpu"]
    status, out, err = ade(*train, "--set", "steps=100", "--set", "learning_rate=0.005", "--json")
    assert status == 0, err
    assert json.loads(out)["test"]["accuracy"] > 0.6
    status, out, _ = ade("evaluate", tmp_path / "model", folder, "--json")
    assert (status, json.loads(out)["spans"] > 60) == (0, True)
    (tmp_path / "texts.txt").write_text("goal match\nthe\n")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "texts.txt")
    assert status == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["goal", "match", "", "the", ""]
    assert ade(*train, "--problem", "regression", "--overwrite")[0] == 2
    assert "token-classification" in (tmp_path / "model" / "README.md").read_text()


def test_sentences_are_split_off_at_random_by_the_seed():
    rows = [(f"w{i}",) for i in range(200)]
    data = TaggedDataset(rows, [np.zeros(1, np.int64)] * 200, ("O",))
    rest, dev = data.split(0.2, seed=0)
    places = [rows.index(tuple(words)) for words in dev.sentences]
    assert (len(rest), len(dev)) == (160, 40)
    assert all(sum(start <= place < start + 50 for place in places) >= 3 for start in (0, 50, 100, 150))
    assert len(set(np.diff(places))) > 2  # nor one every few rows
    assert data.split(0.2, seed=0)[1].sentences == dev.sentences
    assert data.split(0.2, seed=1)[1].sentences != dev.sentences
