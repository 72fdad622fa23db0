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

import ade
from ade.configuration import ENCODER, TAGGER
from ade.errors import InputError
from ade.integrations.sentence_transformers import AdeModule
from ade.packing.format import Packing
from ade.trained_model import Classifier, Encoder
from tests.conftest import lively, sentence_encoder, topic_texts, untrained
from tests.models import oracle, random_model

TEXTS, LABELS = topic_texts(120, 0)
SOME = ["w1 w2 w3", "w4", "", "w5 w5 w1 w9 w2 w7", "w3 " * 300]  # the last is truncated
FILES = {
    "README.md", "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
    "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip


def alone(folder) -> SentenceTransformer:
    return SentenceTransformer(modules=[AdeModule.from_folder(folder)], device="cpu")


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


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_a_trained_model_pools_as_it_does(attend, tmp_path):
    saved = random_model(attend=attend, lexicon=True)
    saved.save(tmp_path / "model")
    model = alone(tmp_path / "model")
    ids = [np.array(encoding.ids or [0]) for encoding in saved.tokenizer.encode_batch(SOME[:4])]
    expected = [oracle(saved).pooled(text) for text in ids]
    np.testing.assert_allclose(model.encode(SOME[:4]), expected, rtol=1e-4, atol=1e-5)
    assert model.get_embedding_dimension() == 16
    tokens = model.encode(SOME[:1], output_value="token_embeddings")[0]
    states, _ = oracle(saved).states(ids[0])  # one for each anchor of each token, or for each token
    np.testing.assert_allclose(tokens.numpy(), states, rtol=1e-4, atol=1e-5)


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


def test_a_classifier_is_trained_further_and_still_a_classifier(folder, pairs, tmp_path):
    model = alone(folder)
    head, pooler = (getattr(model[0].model, name).weight.clone() for name in ("head", "pooler"))
    others = pairs[1] + pairs[1][20:] + pairs[1][:20]
    data = {"one": pairs[0] * 2, "other": others, "score": [1.0] * 60 + [0.0] * 60}
    anchors = model[0].model.ade.embedding.anchors.detach().clone()
    losses = fit(model, data, CosineSimilarityLoss(model), tmp_path / "run", save_strategy="steps", save_steps=30)
    assert losses[-1] < losses[0]
    assert torch.equal(model[0].model.head.weight, head)
    assert not torch.equal(model[0].model.pooler.weight, pooler)
    assert not torch.equal(model[0].model.ade.embedding.anchors, anchors)
    checkpoint = tmp_path / "run" / "checkpoint-30"
    assert {path.name for path in checkpoint.iterdir()} >= FILES
    np.testing.assert_array_equal(load(checkpoint).encode(TEXTS), model.encode(TEXTS))
    assert Classifier.load(checkpoint).labels == ("money", "space", "sport")


def test_saving_leaves_training_on_and_a_packed_table_packed(codebook, tmp_path):
    packed = replace(codebook, table=replace(codebook.table, packing=Packing()))
    untrained(packed, sorted(set(LABELS)), heads=2).save(tmp_path / "packed")
    model = alone(tmp_path / "packed")
    model[0].train().save(str(tmp_path))
    assert all(part.training for part in model[0].modules())
    model.save(str(tmp_path / "model"), safe_serialization=False)
    assert "model.safetensors" in [path.name for path in (tmp_path / "model").iterdir()]  # no pickle, though asked for
    assert load_file(tmp_path / "model" / "model.safetensors")["ade.embedding.codes"].dtype == torch.uint8
    np.testing.assert_allclose(load(tmp_path / "model").encode(TEXTS), model.encode(TEXTS), rtol=1e-4, atol=1e-5)


def test_truncation_and_prompts(folder, tmp_path):
    model = alone(folder)
    np.testing.assert_array_equal(model.encode("bank", prompt="goal "), model.encode("goal bank"))
    model.max_seq_length = 2
    np.testing.assert_array_equal(model.encode("goal bank planet"), model.encode("goal bank"))
    model.save(str(tmp_path / "model"))
    assert load(tmp_path / "model").max_seq_length == 2
    with pytest.raises(InputError, match="max_seq_length must leave room"):
        model.max_seq_length = 0


def test_it_loads_where_nobody_has_imported_us(folder, tmp_path):
    model = alone(folder)
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


def test_what_gives_no_vectors_of_texts_is_refused(tmp_path):
    random_model(kind=TAGGER).save(tmp_path / "tagger")
    with pytest.raises(InputError, match="no vectors of texts"):
        AdeModule.from_folder(tmp_path / "tagger")
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
