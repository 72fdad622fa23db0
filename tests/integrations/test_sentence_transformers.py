"""AdeModule in sentence-transformers: vectors, pooling, training, saving and loading by the library itself."""

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
from ade.configuration import ENCODER, TAGGER
from ade.errors import InputError
from ade.integrations.sentence_transformers import AdeModule
from ade.packing.format import Packing
from ade.settings import Architecture
from ade.trained_model import Classifier, Encoder
from tests.conftest import lively, sentence_encoder, topic_texts, untrained
from tests.models import oracle, random_model

TEXTS, LABELS = topic_texts(120, 0)
SOME = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]  # the last is truncated
FILES = {
    "README.md", "ade_module.json", "config.json", "config_sentence_transformers.json", "model.safetensors",
    "modules.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


def static(codebook, architecture=None) -> SentenceTransformer:
    module = AdeModule.from_codebook(codebook, architecture)
    return SentenceTransformer(modules=[module, Pooling(codebook.table.dim)], device="cpu")


def alone(folder, **options) -> SentenceTransformer:
    return SentenceTransformer(modules=[AdeModule.from_folder(folder, **options)], device="cpu")


def load(folder) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


@pytest.fixture
def folder(codebook, tmp_path):
    """The folder of a classifier of topics."""
    lively(untrained(codebook, sorted(set(LABELS)), heads=2)).save(tmp_path / "classifier")
    return tmp_path / "classifier"


@pytest.fixture
def pairs():
    """Texts of one topic beside each other."""
    texts = [TEXTS[i] for i in np.argsort(LABELS, kind="stable")]
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


def mean_row(codebook, text: str) -> np.ndarray:
    ids = codebook.tokenizer.encode(text, add_special_tokens=False).ids
    rows = torch.from_numpy(codebook.table.normalised().rows(np.array(ids)))
    return F.layer_norm(rows, (codebook.table.dim,)).mean(0).numpy()


def test_static_vectors_are_the_mean_of_composed_tokens(codebook):
    model = static(codebook)
    vectors = model.encode(TEXTS)
    np.testing.assert_allclose(vectors, [mean_row(codebook, text) for text in TEXTS], rtol=1e-4, atol=1e-5)
    assert model.get_embedding_dimension() == codebook.table.dim
    similar = model.similarity(vectors[:5], vectors)
    np.testing.assert_allclose(similar[1, 7], F.cosine_similarity(*torch.tensor(vectors[[1, 7]]), dim=0), rtol=1e-4)


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_a_text_alone_is_the_text_among_others(attend, codebook):
    model = static(codebook, Architecture(attend=attend))
    texts = ["goal", "bank market the of and it was", "", "   ", "planet unknown"]
    together = model.encode(texts)
    assert np.isfinite(together).all()
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_allclose(model.encode(text), vector, rtol=1e-4, atol=1e-5)
    tokens = model.encode(texts[:2], output_value="token_embeddings")
    anchors = codebook.table.counts[codebook.tokenizer.encode(texts[1]).ids].sum()
    assert len(tokens[1]) == (anchors if attend == "anchors" else 7)


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_a_trained_model_pools_as_it_does(attend, tmp_path):
    saved = random_model(attend=attend, lexicon=True)
    saved.save(tmp_path / "model")
    model = alone(tmp_path / "model")
    ids = [np.array(encoding.ids or [0]) for encoding in saved.tokenizer.encode_batch(SOME[:4])]
    expected = [oracle(saved).pooled(text) for text in ids]
    np.testing.assert_allclose(model.encode(SOME[:4]), expected, rtol=1e-4, atol=1e-5)
    assert model.get_embedding_dimension() == 16
    tokens = AdeModule.from_folder(tmp_path / "model", pooled=False)
    vectors = SentenceTransformer(modules=[tokens, Pooling(16), Normalize()], device="cpu").encode(SOME)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_an_encoder_gives_its_own_vectors_also_when_saved(layers, tmp_path):
    encoder = sentence_encoder(layers)
    encoder.save(tmp_path / "encoder")
    model = alone(tmp_path / "encoder")
    assert model.get_embedding_dimension() == 24
    np.testing.assert_allclose(model.encode(SOME), encoder.encode(SOME), atol=1e-5)

    model.save(str(tmp_path / "saved"))
    np.testing.assert_array_equal(load(tmp_path / "saved").encode(SOME), model.encode(SOME))
    np.testing.assert_allclose(ade.load(tmp_path / "saved").encode(SOME), encoder.encode(SOME), atol=1e-5)
    assert ModelCard.load(tmp_path / "saved" / "README.md").data.pipeline_tag == "sentence-similarity"


def test_an_encoder_is_trained_further_and_still_an_encoder(pairs, codebook, tmp_path):
    untrained(codebook, (), kind=ENCODER, output_size=8, heads=2).save(tmp_path / "encoder")
    model = alone(tmp_path / "encoder")
    before = model.encode(TEXTS)
    losses = fit(
        model, {"anchor": pairs[0], "positive": pairs[1]}, MultipleNegativesRankingLoss(model), tmp_path / "run"
    )
    assert losses[-1] < losses[0]
    assert not np.allclose(model.encode(TEXTS), before, atol=0.01)
    model.save(str(tmp_path / "after"))
    np.testing.assert_allclose(Encoder.load(tmp_path / "after").encode(TEXTS), model.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("architecture", [None, Architecture()], ids=["static", "attending"])
def test_a_codebook_is_trained_and_saved(architecture, codebook, pairs, tmp_path):
    model = static(codebook, architecture)
    before, anchors = model.encode(TEXTS), model[0].model.embedding.anchors.detach().clone()
    losses = fit(
        model, {"anchor": pairs[0], "positive": pairs[1]}, MultipleNegativesRankingLoss(model), tmp_path / "run"
    )
    assert losses[-1] < losses[0]
    after = model.encode(TEXTS)
    assert not np.allclose(before, after, atol=0.01)
    assert not torch.equal(model[0].model.embedding.anchors, anchors)
    model.save(str(tmp_path / "model"), safe_serialization=False)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == FILES | {"1_Pooling"}  # no pickle, though asked for
    loaded = load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), after)
    assert not loaded[0].special_tokens


def test_a_classifier_is_trained_further_and_still_a_classifier(folder, pairs, tmp_path):
    model = alone(folder)
    head, pooler = (getattr(model[0].model, name).weight.clone() for name in ("head", "pooler"))
    others = pairs[1] + pairs[1][20:] + pairs[1][:20]
    data = {"one": pairs[0] * 2, "other": others, "score": [1.0] * 60 + [0.0] * 60}
    losses = fit(model, data, CosineSimilarityLoss(model), tmp_path / "run", save_strategy="steps", save_steps=30)
    assert losses[-1] < losses[0]
    assert torch.equal(model[0].model.head.weight, head)
    assert not torch.equal(model[0].model.pooler.weight, pooler)
    checkpoint = tmp_path / "run" / "checkpoint-30"
    np.testing.assert_array_equal(load(checkpoint).encode(TEXTS), model.encode(TEXTS))
    assert Classifier.load(checkpoint).labels == ("money", "space", "sport")


def test_saving_leaves_training_on_and_a_packed_table_packed(codebook, tmp_path):
    packed = replace(codebook, table=replace(codebook.table, packing=Packing()))
    model = static(packed, Architecture())
    model[0].train().save(str(tmp_path))
    assert all(part.training for part in model[0].modules())
    model.save(str(tmp_path / "model"))
    assert load_file(tmp_path / "model" / "model.safetensors")["ade.embedding.codes"].dtype == torch.uint8
    np.testing.assert_allclose(load(tmp_path / "model").encode(TEXTS), model.encode(TEXTS), rtol=1e-4, atol=1e-5)


def test_truncation_and_prompts(codebook, tmp_path):
    model = static(codebook)
    np.testing.assert_array_equal(model.encode("bank", prompt="goal "), model.encode("goal bank"))
    model.max_seq_length = 2
    np.testing.assert_array_equal(model.encode("goal bank planet"), model.encode("goal bank"))
    model.save(str(tmp_path / "model"))
    assert load(tmp_path / "model").max_seq_length == 2
    with pytest.raises(InputError, match="max_seq_length must leave room"):
        model.max_seq_length = 0


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


def test_a_tagger_has_no_pooling_of_its_own(tmp_path):
    tagger = random_model(kind=TAGGER)
    tagger.save(tmp_path / "tagger")
    with pytest.raises(InputError, match="no pooling of its own"):
        AdeModule.from_folder(tmp_path / "tagger")
    module = AdeModule.from_folder(tmp_path / "tagger", pooled=False)
    vector = SentenceTransformer(modules=[module, Pooling(16)], device="cpu").encode("w1 w2")
    np.testing.assert_allclose(vector, oracle(tagger).states(np.array([3, 4]))[0].mean(0), rtol=1e-4, atol=1e-5)


def test_what_is_saved_is_a_model_of_ours(codebook, tmp_path):
    model = static(codebook, Architecture())
    model.save(str(tmp_path), create_model_card=False)
    assert not (tmp_path / "README.md").exists()
    ids = AutoTokenizer.from_pretrained(tmp_path)("goal bank", return_tensors="pt").input_ids
    states = AutoModel.from_pretrained(tmp_path)(ids).last_hidden_state.detach()
    np.testing.assert_allclose(states.mean(1)[0], model.encode("goal bank"), rtol=1e-4, atol=1e-5)


def test_other_folders_are_refused(folder, tmp_path):
    with pytest.raises(InputError, match="it was not saved by AdeModule"):
        AdeModule.load(str(folder))
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
    assert done.stdout == "AdeModule needs sentence-transformers 5.4: pip install 'ade-embeddings[sentence]'\n"
