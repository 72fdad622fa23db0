"""`compress` from a folder to a folder: sizes, losses, what is refused, and the command line."""

import json
import math
import sys
from dataclasses import asdict

import pytest
import torch
import transformers
from safetensors.torch import load_file

import ade as library
from ade import CompressionSettings
from ade.compression import compress as module, frequencies
from ade.compression.checkpoint import load_model
from ade.compression.head import PackedHead
from ade.errors import InputError
from tests.compression.conftest import SHAPE, SPECIAL, WORDS, is_mapped, random_model, save_tokenizer


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_folder_loads_and_is_near_to_the_original(kind, corpus, tmp_path, request):
    source = request.getfixturevalue(kind)
    report = library.compress(source, tmp_path / "packed", CompressionSettings(size="30kB"), [corpus])
    assert report.table["after"] <= 30_000 < report.table["before"] == 404 * 32 * 4
    assert list(report.loss) == ["corpus.txt"]
    assert math.isfinite(report.loss["corpus.txt"])
    assert (tmp_path / "packed" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert "## Compressed table" in (tmp_path / "packed" / "README.md").read_text("utf8")
    assert json.loads((tmp_path / "packed" / "compression.json").read_text("utf8")) == asdict(report)

    ids = torch.tensor([[2, 4, 5, 9, 3]])
    with torch.no_grad():
        states, original = (load_model(folder)[0](input_ids=ids)[0] for folder in (tmp_path / "packed", source))
    assert 0 < (states - original).abs().max() < 1


def test_bytes_are_spent_until_the_loss_is_small_enough(encoder, corpus, tmp_path, monkeypatch):
    plain = library.compress(encoder, tmp_path / "plain", CompressionSettings(size="22kB"), [corpus])
    settings = CompressionSettings(size="22kB", max_loss=f"{plain.loss['corpus.txt'] / 2}%")
    report = library.compress(encoder, tmp_path / "better", settings, [corpus])
    assert report.loss["corpus.txt"] <= plain.loss["corpus.txt"] / 2
    assert report.table["after"] > plain.table["after"]

    monkeypatch.setattr(module, "GROWTH", 100)  # nothing but the table itself is larger
    with pytest.raises(InputError, match="--max-loss must allow more"):
        library.compress(encoder, tmp_path / "packed", CompressionSettings(max_loss="0.000001%"), [corpus])
    assert not (tmp_path / "packed").exists()
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="holds no text to count rows in"):
        library.compress(encoder, tmp_path / "packed", corpus=[tmp_path / "empty.txt"])
    with pytest.raises(InputError, match="give --corpus FILE"):
        library.compress(encoder, tmp_path / "packed", CompressionSettings(max_loss="1%"))


def test_tuning_brings_the_outputs_closer(encoder, corpus, tmp_path):
    settings = CompressionSettings(size="22kB", tune_steps=60)
    plain = library.compress(encoder, tmp_path / "plain", settings, [corpus])
    tuned = library.compress(encoder, tmp_path / "tuned", settings, [corpus], tune_on=[corpus])
    assert tuned.table == plain.table
    assert tuned.loss["corpus.txt"] < plain.loss["corpus.txt"]

    (tmp_path / "one.txt").write_text("word1 word2\n" * 30, "utf8")
    with pytest.raises(InputError, match="held out"):  # the same text
        library.compress(encoder, tmp_path / "out", settings, [tmp_path / "one.txt"], tune_on=[tmp_path / "one.txt"])


def test_what_the_loss_is_measured_on_is_not_tuned_on(corpus):
    texts = module.Texts.read([corpus], [corpus])
    (measured,), (counted,), (tuned,) = texts.held_out.values(), texts.counted.values(), texts.tuning
    assert (len(measured), len(counted)) == (15, 285)  # every 20th
    assert not {*tuned} & {*measured}
    assert {*tuned} == {*counted} - {*measured}


def test_files_count_the_same_whatever_their_length(decoder, tmp_path, monkeypatch):
    for name, count, word in (("long", 400, "word7"), ("short", 20, "word9")):
        (tmp_path / f"{name}.txt").write_text(f"{word} word1\n" * count, "utf8")
    seen, code = [], module.encode_tables
    monkeypatch.setattr(module, "encode_tables", lambda sources, *rest: seen.extend(sources) or code(sources, *rest))
    files = [tmp_path / "long.txt", tmp_path / "short.txt"]
    report = library.compress(decoder, tmp_path / "out", CompressionSettings(size="20kB"), files)
    words = seen[0].frequency[len(SPECIAL) :]
    assert float(words[7]) == pytest.approx(float(words[9]), rel=0.01)
    assert words[1] > words[7] > words[2]
    assert set(report.loss) == {"long.txt", "short.txt"}

    assert module.balanced([[1, 2, 3], [], [4]]) == [1, 2, 3, 4, 4, 4]
    assert module.balanced([[], []]) == module.balanced([]) == []


def test_an_output_table_of_its_own(decoder, corpus, tmp_path):
    with pytest.raises(InputError, match="--head is for decoders with an output table of their own"):
        library.compress(decoder, tmp_path / "both", CompressionSettings(head=True), [corpus])

    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=False, bos_token_id=2, eos_token_id=3)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "untied")
    save_tokenizer(tmp_path / "untied", decoder=True)
    settings = CompressionSettings(size="30kB", head=True)
    report = library.compress(tmp_path / "untied", tmp_path / "both", settings, [corpus])
    assert report.table["after"] <= 30_000 < report.table["before"] == 2 * 404 * 32 * 4
    model = load_model(tmp_path / "both")[0]
    assert isinstance(model.lm_head, PackedHead)
    assert model.lm_head.packed is not model.model.embed_tokens.packed


@pytest.fixture
def layered(request, tmp_path):
    """A model with a table of every layer's inputs, in bfloat16."""
    torch.manual_seed(0)
    model = random_model(request.param, vocab_size=404, vocab_size_per_layer_input=404)
    model.bfloat16().save_pretrained(tmp_path / "source")
    save_tokenizer(tmp_path / "source", decoder=True)
    return tmp_path / "source"


@pytest.mark.parametrize("layered", ["gemma3n", "gemma4"], indirect=True)
def test_a_table_for_every_layer_shares_the_size_and_is_not_read_into_memory(layered, corpus, tmp_path, monkeypatch):
    seen, code = [], module.encode_tables
    monkeypatch.setattr(module, "encode_tables", lambda sources, *rest: seen.extend(sources) or code(sources, *rest))
    report = library.compress(layered, tmp_path / "packed", CompressionSettings(size="60kB"), [corpus])
    assert 50_000 < report.table["after"] <= 60_000 < report.table["before"] == 404 * (64 + 2 * 16) * 2
    if sys.platform.startswith("linux"):
        assert all(is_mapped(source.rows, layered / "model.safetensors") for source in seen)

    model, original = load_model(tmp_path / "packed")[0], load_model(layered)[0]
    table, ids = model.model.embed_tokens_per_layer, torch.tensor([[2, 4, 5, 9, 3]])
    assert (table.packed.shape.rows, table.packed.shape.dim, table.slices) == (404 * 2, 16, 2)
    rows, wanted = table(ids)[0], original.model.embed_tokens_per_layer(ids)[0]
    assert torch.equal(rows[[0, 4]], wanted[[0, 4]])  # of special tokens, every layer's slice stays exact
    assert torch.cosine_similarity(rows[1:4].float(), wanted[1:4].float()).min() > 0.9


@pytest.mark.parametrize("layered", ["gemma4"], indirect=True)
def test_a_model_computes_in_float32_though_a_table_stays_as_it_is(layered):
    model, whole = (load_model(layered)[0] for _ in range(2))
    module.cast_to_float(model, [model.model.embed_tokens_per_layer])
    assert model.model.embed_tokens_per_layer.weight.dtype == torch.bfloat16
    assert torch.equal(model(torch.tensor([[2, 4, 9]])).logits, whole.float()(torch.tensor([[2, 4, 9]])).logits)


def test_what_is_no_model_is_refused(tmp_path):
    def refused(message, source=tmp_path):
        with pytest.raises(InputError, match=message):
            library.compress(source, tmp_path / "packed")

    refused("not the folder of a transformers or sentence-transformers model")
    refused("no such folder", tmp_path / "nowhere")
    (tmp_path / "config.json").write_text('{"quantization_config": {}}', "utf8")
    refused("already quantized")
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}', "utf8")
    refused("not a model transformers can load")


def test_the_command_prints_bytes_and_losses(encoder, corpus, tmp_path, ade):
    words = ("compress", encoder, "--out", tmp_path / "packed", "--size", "30kB", "--corpus", corpus)
    status, out, _ = ade(*words)
    assert status == 0
    assert "held-out text" in out
    assert "corpus.txt" in out
    assert ade(*words)[0] == 2  # the folder is there
    status, out, _ = ade(*words, "--overwrite", "--json")
    assert json.loads(out.strip().splitlines()[-1])["table"]["after"] <= 30_000


def test_without_a_corpus_there_is_no_loss(encoder, tmp_path, ade, monkeypatch):
    monkeypatch.setattr(frequencies, "word_lists", lambda: {"en": {word: 1 / (n + 1) for n, word in enumerate(WORDS)}})
    status, out, _ = ade("compress", encoder, "--out", tmp_path / "packed", "--size", "30kB")
    assert status == 0
    assert "--corpus FILE" in out
    assert "Loss" not in (tmp_path / "packed" / "README.md").read_text("utf8")


def test_a_model_in_float16_is_computed_with_in_float32_and_stays_in_float16(encoder, corpus, tmp_path):
    transformers.AutoModel.from_pretrained(encoder, dtype=torch.float16).save_pretrained(tmp_path / "half")
    save_tokenizer(tmp_path / "half", decoder=False)
    report = library.compress(tmp_path / "half", tmp_path / "packed", CompressionSettings(size="20kB"), [corpus])
    assert report.table["before"] == 404 * 32 * 2
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["dtype"] == "float16"
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "packed"))
    assert after["embeddings.word_embeddings.table.exact"].dtype == torch.float16
    assert all(torch.equal(before[name], after[name]) for name in before if "word_embeddings" not in name)
