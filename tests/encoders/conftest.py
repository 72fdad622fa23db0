"""A real sentence encoder, too small to know anything."""

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tests.conftest import FILLER, WORDS, word_tokenizer


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ADE_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def sentence_folder(tmp_path_factory):
    """A real sentence encoder, too small to know anything."""
    folder = tmp_path_factory.mktemp("sentence") / "teacher"
    words = word_tokenizer([*(word for group in WORDS.values() for word in group), *FILLER])
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=words.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder.parent / "bert")
    fast = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    fast.save_pretrained(folder.parent / "bert")
    module = Transformer(str(folder.parent / "bert"))
    SentenceTransformer(modules=[module, Pooling(16, "mean"), Normalize()], device="cpu").save(str(folder))
    return folder
