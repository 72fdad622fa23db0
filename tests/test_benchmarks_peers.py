"""Peers: tuned on training rows alone, whole encoders fine-tuned, every byte counted."""

import pytest
import torch
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks import records, runs
from benchmarks.library import linear_bytes
from benchmarks.subjects import peers
from benchmarks.subjects.accuracy import peer_run
from tests.conftest import FILLER, WORDS, word_tokenizer


def small_encoder(folder):
    """A BERT small enough for a test, in place of MiniLM."""
    words = word_tokenizer([*(word for group in WORDS.values() for word in group), *FILLER])
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=words.get_vocab_size(), **shape)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)


def test_a_whole_encoder_is_fine_tuned(places, tmp_path):
    small_encoder(places.models_dir / "minilm-l6")
    assert runs.reproduce([peer_run("minilm-l6", "ag_news")], places, tmp_path) == []
    figures = records.load(tmp_path)[0]["figures"]
    assert 0.2 < figures["accuracy"] <= 1
    assert figures["bytes"] > 4 * 32 * 50


def test_frozen_vectors_are_fused_with_ngrams(places, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn is of the extra 'bench'")
    small_encoder(places.models_dir / "minilm-l6")
    assert runs.reproduce([peer_run("minilm+ngrams", "ag_news", per_class=20)], places, tmp_path) == []
    figures = records.load(tmp_path)[0]["figures"]
    assert figures["train_rows"] == 60
    assert figures["accuracy"] > 0.8
    assert figures["chosen"]["weight of vectors"] < 0.5  # those of an encoder that knows nothing
    assert figures["bytes"] > (places.models_dir / "minilm-l6" / "model.safetensors").stat().st_size


@pytest.mark.parametrize("peer", ["tfidf", "nbsvm", "fasttext", "fasttext-ftz"])
def test_peers_are_tuned_on_training_rows(places, tmp_path, peer, monkeypatch):
    needed = "fasttext" if peer.startswith("fasttext") else "sklearn"
    pytest.importorskip(needed, reason=f"{needed} is of the extra 'bench'")
    few = {"text": ("lower case",), "wordNgrams": (2,), "epoch": (25,), "lr": (0.5, 0.1), "dim": (10,)}
    if needed == "fasttext":
        monkeypatch.setitem(peers.FITS, peer, (peers.FITS[peer][0], few))
    assert runs.reproduce([peer_run(peer, "ag_news")], places, tmp_path) == []
    figures = records.load(tmp_path)[0]["figures"]
    assert figures["accuracy"] > 0.8
    assert figures["chosen"]["cross_validated_accuracy"] > 0.8
    assert figures["bytes"] > 1000


def test_settings_are_searched_one_after_the_other():
    tried = []

    def score(options):
        tried.append(dict(options))
        return {1: 0.5, 2: 0.7, 3: 0.7}[options["a"]] + (0.1 if options == {"a": 2, "b": "y"} else 0)

    found = peers.search({"a": (1, 2, 3), "b": ("x", "y")}, score)
    assert found == ({"a": 2, "b": "y"}, pytest.approx(0.8))  # of equals the earlier
    assert len(tried) == 4


def test_the_bytes_of_a_linear_model_are_all_counted():
    assert linear_bytes(10, ["ab", "\u00fc"]) == 4 * 10 + 3 + 3
