import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

from ade.classifier import Classifier, Tagger, predict_tags
from ade.data.conll import TaggedDataset, is_tagged, load_tagged
from ade.data.tag_tokens import UNLABELLED, encode_tagged
from ade.errors import InputError
from ade.evaluation import compare_tags, evaluate_tagger, spans
from ade.model import AdeForTokenClassification
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.conftest import FILLER, WORDS, ragged_codebook

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


@pytest.mark.parametrize("attend", ["tokens", "gated", "anchors"])
def test_tags_are_learned_and_come_back_from_a_folder(attend, codebook, folder, tmp_path):
    architecture = Architecture(attend=attend, heads=2)
    tagger = fit_model(codebook, load_tagged(folder), settings=QUICK, architecture=architecture, out=tmp_path / "model")
    held = load_tagged(folder, "test")
    found = evaluate_tagger(tagger, held)
    assert found.accuracy > 0.9
    assert found.f1 > 0.85
    assert found.words == sum(map(len, held.sentences))
    loaded = Tagger.load(tmp_path / "model")
    assert loaded.predict(held.sentences) == tagger.predict(held.sentences)
    assert [len(tags) for tags in loaded.predict(["goal the bank", ""])] == [3, 0]
    said = pipeline("token-classification", str(tmp_path / "model"))("goal match the bank market")
    mine = loaded.predict(["goal match the bank market"])[0]
    assert [each["entity"] for each in said] == [tag for tag in mine if tag != "O"]
    with pytest.raises(InputError, match="a tagger, which labels words"):
        Classifier.load(tmp_path / "model")


def test_hugging_face_loads_it_and_padding_changes_nothing(tmp_path):
    book = ragged_codebook([1, 3, 2, 4, 1, 5])
    for attend in ("tokens", "gated", "anchors"):
        architecture = Architecture(attend=attend, heads=2)
        model = AdeForTokenClassification.from_codebook(book, "xyz", architecture).eval()
        Tagger(model, book.tokenizer).save(tmp_path / attend)
        loaded = AutoModelForTokenClassification.from_pretrained(tmp_path / attend).eval()
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / attend)
        batch = tokenizer(["w0 w1 w2", "w3"], padding=True, return_tensors="pt")
        both = loaded(batch["input_ids"], batch["attention_mask"]).logits
        alone = model(torch.tensor([[5]])).logits
        assert both.shape == (2, 3, 3)
        torch.testing.assert_close(both[1:, :1], alone, rtol=1e-5, atol=1e-5)


def test_only_labelled_tokens_are_learned():
    model = AdeForTokenClassification.from_codebook(ragged_codebook([1, 3, 2, 4]), "xy", Architecture(heads=2)).eval()
    ids, labels = torch.tensor([[0, 1, 2]]), torch.tensor([[1, UNLABELLED, 0]])
    found = model(ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(found.logits[0, [0, 2]], torch.tensor([1, 0]))
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-6)


def pieces(kind: str) -> Tokenizer:
    """Tokenizers that cut words: WordPiece, byte-level BPE, and one with ▁ for spaces."""
    if kind == "wordpiece":
        known = {"[UNK]": 0, "un": 1, "##likely": 2, "bank": 3, "##s": 4, "in": 5, "New": 6, "York": 7, "é": 8}
        tokenizer = Tokenizer(models.WordPiece(known, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
    if kind == "bytes":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    letters = sorted(set("▁unlikelybanksinNewYorké"))
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "metaspace"])
def test_a_words_tag_is_its_first_tokens(kind, tmp_path):
    (tmp_path / "a.conll").write_text("unlikely A\nbanks B\nin C\nNew D\nYork E\né F\n\nbanks B\n")
    data = load_tagged(tmp_path / "a.conll")
    texts, labels = encode_tagged(pieces(kind), data, 64)
    assert len(texts) == 2
    for i, tags in enumerate(data.tags):
        part = slice(texts.offsets[i], texts.offsets[i + 1])
        own = labels.ids[part][labels.ids[part] != UNLABELLED]
        assert own.tolist() == tags.tolist()
    assert labels.ids[0] == data.tags[0][0] or labels.ids[1] == data.tags[0][0]  # ▁ may stand alone before a word


def test_long_sentences_are_cut_and_the_rest_is_outside():
    book = ragged_codebook([1, 3, 2, 4, 1, 5])
    architecture = Architecture(heads=2, max_tokens=4)
    model = AdeForTokenClassification.from_codebook(book, ["B-x", "I-x", "O"], architecture)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([99.0, 0, 0]))
    assert Tagger(model, book.tokenizer).predict([["w0"] * 6]) == [["B-x"] * 4 + ["O"] * 2]
    with pytest.raises(InputError, match="list of sentences"):
        Tagger(model, book.tokenizer).predict("w0 w1")


def test_tags_of_a_batch_are_those_of_each_alone():
    book = ragged_codebook([1, 3, 2, 4, 1, 5])
    model = AdeForTokenClassification.from_codebook(book, "xyz", Architecture(heads=2))
    tagger = Tagger(model, book.tokenizer)
    some = ["w0 w1 w2 w3", "w3", "", "w2 w2"]
    assert tagger.predict(some) == [tagger.predict([one])[0] for one in some]
    assert predict_tags(model, encode_tagged(book.tokenizer, _data(["w0 w1"]), 8)[0]).shape == (2,)


def _data(texts):
    split = [tuple(text.split()) for text in texts]
    return TaggedDataset(split, [np.zeros(len(words), np.int64) for words in split], ("O",))


def test_spans():
    def found(*tags: str) -> list[tuple[int, int, str]]:
        return list(spans(tags))

    assert found("B-x", "I-x", "O", "B-y") == [(0, 2, "x"), (3, 4, "y")]
    assert found("I-x", "I-y", "B-y", "I-y") == [(0, 1, "x"), (1, 2, "y"), (2, 4, "y")]
    assert found("B-x", "I-x", "E-x", "S-y", "S-y") == [(0, 3, "x"), (3, 4, "y"), (4, 5, "y")]
    assert found("NOUN", "VERB", "O", "VERB") == [(0, 1, "NOUN"), (1, 2, "VERB"), (3, 4, "VERB")]
    assert found() == found("O", "O") == []
    assert found("B-a-b", "I-a-b") == [(0, 2, "a-b")]


def test_figures_of_spans():
    names = ("B-x", "I-x", "O")
    truth, said = [np.array([0, 1, 2, 0]), np.array([2])], [np.array([0, 1, 2, 2]), np.array([0])]
    found = compare_tags(truth, said, names)
    assert (found.accuracy, found.spans, found.words) == (3 / 5, 2, 5)
    assert (found.precision, found.recall, found.f1) == (1 / 2, 1 / 2, 1 / 2)


def test_comments_tabs_and_marks_of_byte_order(tmp_path):
    (tmp_path / "a.conll").write_text(
        "\ufeff# text = goal match\n# id 33 domain=train\ngoal\tNN\tO\nNew York\tNN\tB-LOC\n#\tNN\tO\n\n"
        "# one more\ngoal\tNN\tO\n"
    )
    data = load_tagged(tmp_path / "a.conll")
    assert [list(words) for words in data.sentences] == [["goal", "New York", "#"], ["goal"]]
    assert data.names == ("B-LOC", "O")
    texts, labels = encode_tagged(pieces("bytes"), data, 64)
    own = labels.ids[: texts.offsets[1]]
    assert own[own != UNLABELLED].tolist() == [1, 0, 1]


def test_a_batch_without_a_label_teaches_nothing():
    model = AdeForTokenClassification.from_codebook(ragged_codebook([1, 3, 2, 4]), "xy", Architecture(heads=2))
    loss = model(torch.tensor([[0, 1, 2]]), labels=torch.full((1, 3), UNLABELLED)).loss
    loss.backward()
    assert loss.item() == 0
    assert model.classifier.weight.grad.abs().max() == 0


def test_files_that_cannot_be_read_are_refused(tmp_path):
    for name, text, message in (
        ("a.conll", "goal\n", "line 1: a word without a tag"),
        ("b.bio", "\n\n", "has no sentence"),
        ("c.iob", b"\xff\xfe O", "not UTF-8"),
        ("d.tsv", "goal\tO\n", "rename it"),
    ):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(InputError, match=message):
            load_tagged(path)
    with pytest.raises(InputError, match="has no dev file"):
        load_tagged(tmp_path, "dev")
    assert is_tagged(tmp_path / "a.conll")
    assert not is_tagged(tmp_path / "nothing")
    data = _data(["w0"])
    with pytest.raises(InputError, match="not trained on: O"):
        data.relabelled(["x"])


def test_from_the_shell(codebook, folder, tmp_path, ade):
    codebook.save(tmp_path / "codebook")
    made = ["train", "--codebook", tmp_path / "codebook", "--data", folder, "--out", tmp_path / "model"]
    status, out, err = ade(*made, "--steps", 100, "--learning-rate", 0.005, "--device", "cpu", "--json")
    assert status == 0, err
    assert json.loads(out)["test"]["accuracy"] > 0.6
    status, out, _ = ade("evaluate", tmp_path / "model", "--data", folder, "--json")
    assert status == 0
    assert json.loads(out)["spans"] > 60
    (tmp_path / "texts.txt").write_text("goal match\nthe\n")
    status, out, _ = ade("predict", tmp_path / "model", tmp_path / "texts.txt")
    assert status == 0
    assert [line.split("\t")[0] for line in out.splitlines()] == ["goal", "match", "", "the", ""]
    assert ade(*made, "--problem", "regression", "--overwrite")[0] == 2
    assert "token-classification" in (tmp_path / "model" / "README.md").read_text()


def test_sentences_are_held_back_at_random_by_the_seed():
    rows = [(f"w{i}",) for i in range(200)]
    data = TaggedDataset(rows, [np.zeros(1, np.int64)] * 200, ("O",))
    rest, held = data.split(0.2, seed=0)
    places = [rows.index(tuple(words)) for words in held.sentences]
    assert (len(rest), len(held)) == (160, 40)
    assert all(sum(start <= place < start + 50 for place in places) >= 3 for start in (0, 50, 100, 150))
    assert len(set(np.diff(places))) > 2  # nor one of every so many
    assert data.split(0.2, seed=0)[1].sentences == held.sentences
    assert data.split(0.2, seed=1)[1].sentences != held.sentences
