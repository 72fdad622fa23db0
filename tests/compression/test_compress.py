"""`compress` from a folder to a folder: sizes, losses, what is refused, and the command line."""

import json
import math
import random

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from typer.testing import CliRunner

import ade
from ade.cli.main import app
from ade.compression import compress as compress_module
from ade.compression.report import ROUGH, CompressionReport, losses, outputs_of, token_ids
from ade.compression.source import is_decoder, load_model
from ade.errors import InputError
from tests.compression.test_use import needs_lists

WORDS = [f"word{number}" for number in range(400)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SHAPE = {
    "vocab_size": 404,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def texts(count: int, seed: int = 0) -> list[str]:
    chooser = random.Random(seed)
    weights = [1 / (number + 1) for number in range(len(WORDS))]
    return [" ".join(chooser.choices(WORDS, weights, k=8)) for _ in range(count)]


def save_tokenizer(folder, decoder):
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate([*SPECIAL, *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if decoder:
        names |= {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    else:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SHAPE)).save_pretrained(folder)
    save_tokenizer(folder, decoder=False)
    return folder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True, bos_token_id=2, eos_token_id=3)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    save_tokenizer(folder, decoder=True)
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    file.write_text("\n".join(texts(300)) + "\n", "utf8")
    return file


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_folder_loads_with_everything_else_unchanged(kind, corpus, tmp_path, request):
    source = request.getfixturevalue(kind)
    report = ade.compress(source, tmp_path / "packed", ade.CompressionSettings(size="30kB"), [corpus])
    assert report.table["after"] <= 30_000 < report.table["before"] == 404 * 32 * 4
    assert set(report.loss) == {"corpus.txt"}
    assert math.isfinite(report.loss["corpus.txt"])

    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "packed" / "model.safetensors")
    packed = [name for name in after if ".table." in name]
    assert packed
    unchanged = [name for name in before if "embed_tokens" not in name and "word_embeddings" not in name]
    assert unchanged
    assert all(torch.equal(before[name], after[name]) for name in unchanged)
    assert (tmp_path / "packed" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert "## Compressed table" in (tmp_path / "packed" / "README.md").read_text("utf8")
    written = json.loads((tmp_path / "packed" / "compression.json").read_text("utf8"))
    assert written["loss"] == report.loss

    model, _ = load_model(tmp_path / "packed")
    ids = torch.tensor([[2, 4, 5, 9, 3]])
    original, _ = load_model(source)
    with torch.no_grad():
        distance = (model(input_ids=ids)[0] - original(input_ids=ids)[0]).abs().max()
    assert 0 < distance < 1


def test_more_bytes_lose_less(encoder, corpus, tmp_path):
    found = [
        ade.compress(encoder, tmp_path / size, ade.CompressionSettings(size=size), [corpus]).mean_loss
        for size in ("22kB", "34kB")
    ]
    assert found[0] > found[1] >= 0


def test_bytes_are_spent_until_the_loss_is_small_enough(encoder, corpus, tmp_path):
    plain = ade.compress(encoder, tmp_path / "plain", ade.CompressionSettings(size="22kB"), [corpus])
    wanted = plain.mean_loss / 2
    settings = ade.CompressionSettings(size="22kB", max_loss=f"{wanted}%")
    report = ade.compress(encoder, tmp_path / "better", settings, [corpus])
    assert report.mean_loss <= wanted
    assert report.table["after"] > plain.table["after"]


def test_a_loss_that_cannot_be_met_leaves_no_folder(encoder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("ade.compression.compress.GROWTH", 100)  # nothing but the table itself is larger
    with pytest.raises(InputError, match="--max-loss must allow more"):
        ade.compress(encoder, tmp_path / "packed", ade.CompressionSettings(max_loss="0.000001%"), [corpus])
    assert not (tmp_path / "packed").exists()


def test_tuning_brings_the_outputs_closer(encoder, corpus, tmp_path):
    settings = ade.CompressionSettings(size="22kB", tune_steps=60)
    plain = ade.compress(encoder, tmp_path / "plain", settings, [corpus])
    tuned = ade.compress(encoder, tmp_path / "tuned", settings, [corpus], tune_on=[corpus])
    assert tuned.table == plain.table
    assert tuned.mean_loss < plain.mean_loss


def test_tuning_without_text_because_all_texts_are_held_back_is_refused(encoder, tmp_path):
    (tmp_path / "one.txt").write_text("word1 word2\n" * 30, "utf8")
    settings = ade.CompressionSettings(size="22kB")
    with pytest.raises(InputError, match="held back"):
        ade.compress(encoder, tmp_path / "out", settings, [tmp_path / "one.txt"], tune_on=[tmp_path / "one.txt"])


def test_likelihoods_do_not_depend_on_what_is_measured_together(decoder, monkeypatch):
    model, tokenizer = load_model(decoder)
    some = [" ".join(WORDS[start : start + length]) for start, length in ((3, 1), (40, 30), (9, 4), (5, 12), (7, 2))]
    together = outputs_of(model, tokenizer, {"some": some})["some"]
    alone = torch.cat([outputs_of(model, tokenizer, {"one": [text]})["one"] for text in some])
    assert torch.allclose(together, alone, atol=1e-5)
    assert len(together) == sum(len(ids) - 1 for ids in token_ids(tokenizer, some))
    monkeypatch.setattr("ade.compression.report.SCORED", {"cpu": 1})
    assert torch.allclose(outputs_of(model, tokenizer, {"some": some})["some"], alone, atol=1e-5)


def test_what_the_loss_is_measured_on_is_not_tuned_on(encoder, corpus, tmp_path, monkeypatch):
    seen = {}

    def keep(body, layers, packed, texts, *more):
        seen["tuned"] = {tuple(ids) for ids in texts}
        return packed

    def measure(model, tokenizer, held_back, report):
        seen["measured"] = {tuple(ids) for some in held_back.values() for ids in token_ids(tokenizer, some)}
        return outputs_of(model, tokenizer, held_back, report)

    monkeypatch.setattr(compress_module, "tune", keep)
    monkeypatch.setattr(compress_module, "outputs_of", measure)
    ade.compress(encoder, tmp_path / "out", ade.CompressionSettings(size="22kB"), [corpus], tune_on=[corpus])
    assert len(seen["measured"]) > 10
    assert len(seen["tuned"]) > 200
    assert not seen["tuned"] & seen["measured"]


def test_files_of_a_corpus_count_alike(decoder, tmp_path, monkeypatch):
    for name, count, word in (("long", 400, "word7"), ("short", 20, "word9")):
        (tmp_path / f"{name}.txt").write_text(f"{word} word1\n" * count, "utf8")
    seen = []
    code = compress_module.encode_table
    monkeypatch.setattr(
        compress_module, "encode_table", lambda table, use, *rest: seen.append(use) or code(table, use, *rest)
    )
    found = compress_module.compress(
        decoder, tmp_path / "out", ade.CompressionSettings(size="20kB"), [tmp_path / "long.txt", tmp_path / "short.txt"]
    )
    use = seen[0]
    first = len(SPECIAL)
    assert float(use[first + 7]) == pytest.approx(float(use[first + 9]), rel=0.01)
    assert use[first + 1] > use[first + 7] > use[first + 2]
    assert set(found.loss) == {"long.txt", "short.txt"}


def test_the_input_alone(decoder, corpus, tmp_path):
    settings = ade.CompressionSettings(size="30kB", head="input")
    ade.compress(decoder, tmp_path / "packed", settings, [corpus])
    packed, original = load_model(tmp_path / "packed")[0], load_model(decoder)[0]
    assert torch.equal(packed.lm_head.weight, original.lm_head.weight)
    with pytest.raises(InputError, match="--head both"):
        ade.compress(decoder, tmp_path / "both", ade.CompressionSettings(head="both"), [corpus])


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="neither a Hugging Face config"):
        ade.compress(tmp_path, tmp_path / "packed")
    with pytest.raises(InputError, match="no such folder"):
        ade.compress(tmp_path / "nowhere", tmp_path / "packed")
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}', "utf8")
    with pytest.raises(InputError, match="not a model transformers can load"):
        ade.compress(tmp_path, tmp_path / "packed")


def test_the_command_prints_bytes_and_losses(encoder, corpus, tmp_path):
    words = ["compress", str(encoder), "--out", str(tmp_path / "packed"), "--size", "30kB", "--corpus", str(corpus)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "table" in result.stdout
    assert "corpus.txt" in result.stdout
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, InputError)
    as_json = CliRunner().invoke(app, [*words, "--overwrite", "--json"])
    assert json.loads(as_json.stdout.strip().splitlines()[-1])["table"]["after"] <= 30_000


@needs_lists
def test_a_loss_on_made_up_text_is_called_so(encoder, corpus, tmp_path):
    words = ["compress", str(encoder), "--out", str(tmp_path / "packed"), "--size", "30kB", "--overwrite"]
    made_up = CliRunner().invoke(app, [*words, "--languages", "de,en"])
    assert made_up.exit_code == 0, made_up.output
    assert "made-up text" in made_up.stdout
    assert "--corpus FILE" in " ".join(made_up.stdout.split())
    assert f"\n{ROUGH}\n" in (tmp_path / "packed" / "README.md").read_text("utf8")

    real = CliRunner().invoke(app, [*words, "--corpus", str(corpus)])
    assert "held-back text" in real.stdout
    assert "made-up" not in real.stdout + (tmp_path / "packed" / "README.md").read_text("utf8")


def test_a_decoder_reads_its_start_token_first(decoder, encoder):
    for folder, first in ((decoder, 2), (encoder, 2)):
        rows = token_ids(load_model(folder)[1], ["word1 word2"])
        assert rows[0][0] == first
        assert rows[0].count(2) == 1


def test_losses_are_the_increase_of_perplexity_or_the_angle(decoder, encoder):
    model = load_model(decoder)[0]
    assert is_decoder(model)
    before, after = torch.tensor([-1.0, -3.0]), torch.tensor([-1.0, -3.2])
    assert losses(model, {"x": before}, {"x": after})["x"] == pytest.approx(100 * (math.exp(0.1) - 1), rel=1e-5)
    vectors = torch.eye(2)
    angle = losses(load_model(encoder)[0], {"x": vectors}, {"x": torch.ones(2, 2)})["x"]
    assert angle == pytest.approx(100 * (1 - math.sqrt(0.5)), rel=1e-5)


def test_a_report_without_text_has_no_mean():
    sizes = {"before": 2, "after": 1}
    assert math.isnan(CompressionReport("m", sizes, sizes, sizes, "loss", {}).mean_loss)


def test_a_model_in_float16_is_computed_with_in_float32_and_stays_in_float16(encoder, corpus, tmp_path):
    transformers.AutoModel.from_pretrained(encoder, dtype=torch.float16).save_pretrained(tmp_path / "half")
    save_tokenizer(tmp_path / "half", decoder=False)
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    del config["dtype"]
    (tmp_path / "half" / "config.json").write_text(json.dumps(config))

    report = ade.compress(tmp_path / "half", tmp_path / "packed", ade.CompressionSettings(size="20kB"), [corpus])
    assert report.table["before"] == 404 * 32 * 2
    assert json.loads((tmp_path / "packed" / "config.json").read_text())["dtype"] == "float16"
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("half", "packed"))
    assert after["embeddings.word_embeddings.table.exact"].dtype == torch.float16
    kept = [name for name in before if "word_embeddings" not in name]
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        (["--tune", "texts.txt"], "; the same command continues the tuning"),
        (["--own-texts", "9"], ""),
        ([], ""),
    ],
)
def test_an_interrupted_command_says_how_it_continues(more, hint, ade, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(compress_module, "compress", interrupted)
    assert ade("compress", "model", "--out", tmp_path / "out", *more) == (130, "", f"ade: interrupted{hint}\n")


def test_files_to_tune_with_count_alike():
    assert compress_module.alike([[1, 2, 3], [], [4]]) == [1, 2, 3, 4, 4, 4]
    assert compress_module.alike([[1, 2, 3, 4, 5], [6, 7]])[5:] == [6, 7, 6, 7, 6]
    assert compress_module.alike([[], []]) == compress_module.alike([]) == []
