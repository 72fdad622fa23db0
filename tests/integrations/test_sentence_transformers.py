import json
import subprocess
import sys
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import ade
from ade.classifier import Classifier, Tagger
from ade.data.dataset import Dataset
from ade.distillation import distill
from ade.errors import InputError
from ade.integrations.sentence_transformers import AdeModule
from ade.integrations.vectors import pooled_vectors
from ade.model import AdeForTokenClassification
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import AdeForSentenceEmbedding
from ade.settings import STRONG, Architecture, DistillationSettings
from ade.training.loop import fit_model
from tests.conftest import sentence_encoder, topic_texts

TEXTS, LABELS = topic_texts(120, 0)
FILES = {
    "README.md", "ade_module.json", "config.json", "config_sentence_transformers.json", "model.safetensors",
    "modules.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


def static(codebook, architecture=None) -> SentenceTransformer:
    torch.manual_seed(0)
    module = AdeModule.from_codebook(codebook, architecture)
    return SentenceTransformer(modules=[module, Pooling(codebook.dim)], device="cpu")


def load(folder) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


@pytest.fixture(scope="module")
def trained(codebook, tmp_path_factory):
    """The folder of a trained classifier."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    names = tuple(sorted(set(LABELS)))
    data = Dataset(TEXTS, np.array([names.index(label) for label in LABELS]), names)
    fit_model(codebook, data, settings=replace(STRONG, steps=60, batch_size=16, device="cpu")).save(folder)
    return folder


@pytest.fixture
def pairs():
    """Texts of one topic beside each other, and how alike they are: 1."""
    order = np.argsort(LABELS, kind="stable")
    texts = [TEXTS[i] for i in order]
    return texts[0::2], texts[1::2]


def fit(model, data, loss, folder, **options) -> list[float]:
    """Train for some steps; the losses on the way."""
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder), max_steps=30, per_device_train_batch_size=16, learning_rate=5e-3, logging_steps=10,
        report_to=[], use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        **{"save_strategy": "no", **options},
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=datasets.Dataset.from_dict(data), loss=loss)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def slow_mean(codebook, text):
    rows = []
    for token in codebook.tokenizer.encode(text, add_special_tokens=False).ids:
        row = codebook.rows(token, token + 1)[0]
        rows.append(F.layer_norm(row / row.norm() * codebook.dim**0.5, (codebook.dim,)))
    return torch.stack(rows).mean(0).numpy()


def test_static_vectors_are_the_mean_of_composed_tokens(codebook):
    model = static(codebook)
    found = model.encode(TEXTS)
    np.testing.assert_allclose(found, [slow_mean(codebook, text) for text in TEXTS], rtol=1e-4, atol=1e-5)
    assert model.get_embedding_dimension() == codebook.dim
    alike = model.similarity(found[:5], found)
    np.testing.assert_allclose(alike.diagonal(), 1, rtol=1e-5)
    np.testing.assert_allclose(alike[1, 7], F.cosine_similarity(*torch.tensor(found[[1, 7]]), dim=0), rtol=1e-4)


@pytest.mark.parametrize("attend", ["tokens", "gated", "anchors"])
def test_a_text_alone_is_the_text_among_others(attend, codebook):
    model = static(codebook, Architecture(attend=attend))
    texts = ["goal", "bank market the of and it was", "", "   ", "planet unknown"]
    together = model.encode(texts)
    assert np.isfinite(together).all()
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.encode(text), vector, rtol=1e-4, atol=1e-5)
    tokens = model.encode(texts[:2], output_value="token_embeddings")
    per_token = codebook.counts[codebook.tokenizer.encode(texts[1]).ids].sum() if attend == "anchors" else 7
    assert len(tokens[1]) == per_token


def test_the_pooling_of_a_trained_model_is_its_own(trained):
    model = SentenceTransformer(modules=[AdeModule.from_folder(trained)], device="cpu")
    np.testing.assert_allclose(
        model.encode(TEXTS), pooled_vectors(Classifier.load(trained, "cpu"), TEXTS), rtol=1e-4, atol=1e-5
    )
    assert model.get_embedding_dimension() == 16
    tokens = SentenceTransformer(
        modules=[AdeModule.from_folder(trained, pooled=False), Pooling(16), Normalize()], device="cpu"
    )
    np.testing.assert_allclose(np.linalg.norm(tokens.encode(TEXTS), axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_an_encoder_gives_its_own_vectors_also_when_saved(layers, tmp_path):
    sentence_encoder(layers).save(tmp_path / "encoder")
    texts = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]  # the last is truncated
    expected = ade.load(tmp_path / "encoder").encode(texts)
    model = SentenceTransformer(modules=[AdeModule.from_folder(tmp_path / "encoder")], device="cpu")
    assert model.get_embedding_dimension() == 24
    np.testing.assert_allclose(model.encode(texts), expected, atol=1e-5)

    model.save(str(tmp_path / "saved"))
    loaded = load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.encode(texts), model.encode(texts))
    np.testing.assert_allclose(ade.load(tmp_path / "saved").encode(texts), expected, atol=1e-5)
    assert ModelCard.load(tmp_path / "saved" / "README.md").data.pipeline_tag == "sentence-similarity"


def test_an_encoder_is_trained_further_and_still_an_encoder(pairs, codebook, tmp_path):
    model = AdeForSentenceEmbedding.from_codebook(codebook, (), Architecture(attend="tokens"), output_size=8)
    SentenceEncoder(model, codebook.tokenizer).save(tmp_path / "encoder")
    model = SentenceTransformer(modules=[AdeModule.from_folder(tmp_path / "encoder")], device="cpu")
    before = model.encode(TEXTS)
    data = {"anchor": pairs[0], "positive": pairs[1]}
    losses = fit(model, data, MultipleNegativesRankingLoss(model), tmp_path / "run")
    assert losses[-1] < losses[0]
    assert not np.allclose(model.encode(TEXTS), before, atol=0.01)
    model.save(str(tmp_path / "after"))
    np.testing.assert_allclose(ade.load(tmp_path / "after").encode(TEXTS), model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("architecture", [None, Architecture()], ids=["static", "gated"])
def test_it_trains_and_is_saved(architecture, codebook, pairs, tmp_path):
    model = static(codebook, architecture)
    before, started = model.encode(TEXTS), model[0].model.base_model.embedding.anchors.detach().clone()
    losses = fit(
        model, {"anchor": pairs[0], "positive": pairs[1]}, MultipleNegativesRankingLoss(model), tmp_path / "run"
    )
    assert losses[-1] < losses[0]
    after = model.encode(TEXTS)
    assert not np.allclose(before, after, atol=0.01)
    assert not torch.equal(model[0].model.base_model.embedding.anchors, started)
    model.save(str(tmp_path / "model"), safe_serialization=False)
    assert {path.name for path in (tmp_path / "model").iterdir()} == FILES | {
        "1_Pooling"
    }  # no pickle, though asked for
    assert (
        json.loads((tmp_path / "model" / "modules.json").read_text())[0]["type"]
        == "ade.integrations.sentence_transformers.AdeModule"
    )
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), after)
    assert not loaded[0].special_tokens


def test_a_trained_model_goes_on(trained, pairs, tmp_path):
    model = SentenceTransformer(modules=[AdeModule.from_folder(trained)], device="cpu")
    head = model[0].model.classifier.weight.clone()
    pooler = model[0].model.pooler.weight.clone()
    texts = (pairs[0] + pairs[0], pairs[1] + pairs[1][20:] + pairs[1][:20])
    data = {"one": texts[0], "other": texts[1], "score": [1.0] * 60 + [0.0] * 60}
    losses = fit(model, data, CosineSimilarityLoss(model), tmp_path / "run", save_strategy="steps", save_steps=30)
    assert losses[-1] < losses[0]
    assert torch.equal(model[0].model.classifier.weight, head)
    assert not torch.equal(model[0].model.pooler.weight, pooler)
    checkpoint = load(tmp_path / "run" / "checkpoint-30")
    np.testing.assert_array_equal(checkpoint.encode(TEXTS), model.encode(TEXTS))
    assert Classifier.load(tmp_path / "run" / "checkpoint-30", "cpu").names == ("money", "space", "sport")


def test_saving_leaves_training_on(codebook, tmp_path):
    module = AdeModule.from_codebook(codebook, Architecture()).train()
    module.save(str(tmp_path))
    assert all(part.training for part in module.modules())


def test_a_packed_codebook_stays_packed(teacher, tmp_path):
    packed = distill(teacher, DistillationSettings(size="4800"))
    model = static(packed)
    model.save(str(tmp_path / "model"))
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert stored["embedding.codes"].dtype == torch.uint8
    np.testing.assert_allclose(load(tmp_path / "model").encode(TEXTS), model.encode(TEXTS), rtol=1e-5, atol=1e-5)


def test_texts_are_cut(codebook, tmp_path):
    model = static(codebook)
    model.max_seq_length = 2
    np.testing.assert_array_equal(model.encode("goal bank planet"), model.encode("goal bank"))
    model.save(str(tmp_path / "model"))
    assert load(tmp_path / "model").max_seq_length == 2
    with pytest.raises(InputError, match="max_seq_length must leave room"):
        model.max_seq_length = 0


def test_a_prompt_is_put_before(codebook):
    model = static(codebook)
    np.testing.assert_array_equal(model.encode("bank", prompt="goal "), model.encode("goal bank"))


def test_it_loads_where_nobody_has_imported_us(codebook, tmp_path):
    model = static(codebook)
    model.save(str(tmp_path / "model"))
    code = f"""
from sentence_transformers import SentenceTransformer
model = SentenceTransformer({str(tmp_path / "model")!r}, device="cpu", trust_remote_code=True)
print(model.encode("goal bank").tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), model.encode("goal bank"), rtol=1e-5)
    with pytest.raises(ValueError, match="trust_remote_code=True"):  # the library's rule for every class not its own
        SentenceTransformer(str(tmp_path / "model"), device="cpu")


def test_only_a_classifier_pools(codebook, tmp_path):
    tagger = AdeForTokenClassification.from_codebook(codebook, ["O", "B"])
    Tagger(tagger, codebook.tokenizer).save(tmp_path / "tagger")
    with pytest.raises(InputError, match="no pooling of its own"):
        AdeModule.from_folder(tmp_path / "tagger")
    module = AdeModule.from_folder(tmp_path / "tagger", pooled=False)
    model = SentenceTransformer(modules=[module, Pooling(16)], device="cpu")
    expected = tagger.eval().ade(torch.tensor([codebook.tokenizer.encode("goal bank").ids])).last_hidden_state
    np.testing.assert_allclose(model.encode("goal bank"), expected[0].mean(0).detach(), rtol=1e-4, atol=1e-5)


def test_what_is_saved_is_a_model_of_ours(codebook, tmp_path):
    model = static(codebook, Architecture())
    model.save(str(tmp_path), create_model_card=False)
    assert not (tmp_path / "README.md").exists()
    found = AutoModel.from_pretrained(tmp_path)
    ids = AutoTokenizer.from_pretrained(tmp_path)("goal bank", return_tensors="pt").input_ids
    states = found(ids).last_hidden_state.detach()
    np.testing.assert_allclose(states.mean(1)[0], model.encode("goal bank"), rtol=1e-4, atol=1e-5)


def test_other_folders_are_refused(trained, tmp_path):
    with pytest.raises(InputError, match="it was not saved by AdeModule"):
        AdeModule.load(str(trained))
    with pytest.raises(InputError, match="not a model folder"):
        AdeModule.from_folder(tmp_path)


def test_sentence_transformers_is_optional():
    code = """
import sys, ade
assert "sentence_transformers" not in sys.modules
sys.modules["sentence_transformers"] = None
try:
    ade.AdeModule
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "AdeModule needs sentence-transformers: pip install 'ade-embeddings[sentence]'\n"
