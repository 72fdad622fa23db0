"""ADE as the input module of a sentence-transformers model, for encoding, training and saving.

`SentenceTransformer(modules=[AdeModule.from_codebook(codebook), Pooling(codebook.dim)])` starts from a codebook,
`SentenceTransformer(modules=[AdeModule.from_folder(model)])` from a trained classifier and its own pooling. `save`
writes an ADE model folder (safetensors) with the files of sentence-transformers beside it.
"""

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:
    raise ImportError("AdeModule needs sentence-transformers 5.4: pip install 'ade-embeddings[sentence]'") from None

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ade.configuration import Config
from ade.data.tokens import check_texts, encode_chunks, truncating
from ade.errors import InputError
from ade.folder import Saved
from ade.model import AdeForSentenceEmbedding, AdeModel, model_of
from ade.model_card import CARD
from ade.pretrained import AdePreTrainedModel
from ade.settings import STRONG, Architecture
from ade.training.start import shape_of, untrained

STATIC = Architecture(sat=False, positions="none")  # composed tokens alone


class AdeModule(InputModule):
    """Texts -> a vector for each token, and with `pooled` one for the text.

    A model with `attend="anchors"` gives a vector for each anchor of each token. The classification layer of a trained
    model is kept unchanged, but not used.
    """

    config_file_name = "ade_module.json"
    config_keys: list[str] = ["pooled", "special_tokens"]  # noqa: RUF012 - the library's own form

    def __init__(self, model: AdePreTrainedModel, pooled: bool = False, special_tokens: bool = True) -> None:
        """Wrap a model; `special_tokens` says whether its tokenizer adds special tokens to a text."""
        super().__init__()
        if pooled and not hasattr(model, "pooler"):
            raise InputError(f"{type(model).__name__} has no pooling of its own: leave out pooled, and add a Pooling")
        self.model, self.pooled, self.special_tokens = model, pooled, special_tokens
        self.tokenizer = truncating(model.tokenizer, model.settings.max_tokens)
        encoder = pooled and isinstance(model, AdeForSentenceEmbedding)
        for name, trained in (("head", encoder), ("pooler", pooled and model.settings.pooling == "attention")):
            if hasattr(model, name):
                getattr(model, name).requires_grad_(trained)

    @classmethod
    def from_codebook(cls, codebook: Saved, architecture: Architecture | None = None) -> "AdeModule":
        """Composed tokens, to be followed by a `Pooling`; with an architecture, an untrained model on the codebook."""
        shape = shape_of(codebook, architecture or STATIC, STRONG.position_scale)
        dropout = 0.0 if architecture is None else 0.1
        config = Config(labels=("value",), metadata=codebook.config.metadata, dropout=dropout, **shape)
        return cls(AdeModel(untrained(codebook, config, 0)), special_tokens=False)

    @classmethod
    def from_folder(cls, folder: str | Path, pooled: bool = True) -> "AdeModule":
        """A trained model, with its own pooling where `pooled`, else to be followed by a `Pooling`."""
        return cls(model_of(Saved.read(folder)), pooled)

    @property
    def max_seq_length(self) -> int:
        """Tokens a text is truncated to."""
        return self.model.settings.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        if value <= self.tokenizer.num_special_tokens_to_add(False):
            raise InputError(f"max_seq_length must leave room for special tokens and one more, not {value}")
        self.model.settings = replace(self.model.settings, max_tokens=value)
        self.tokenizer.enable_truncation(value)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Token ids and attention mask, padded to the longest text; a text without tokens becomes id 0."""
        check_texts(inputs)
        texts = [(prompt or "") + text for text in inputs]
        rows = chain.from_iterable(
            encode_chunks(self.tokenizer, texts, self.max_seq_length, special=self.special_tokens)
        )
        ids = [torch.tensor(row.ids or [0]) for row in rows]
        mask = [torch.ones_like(row) for row in ids]
        pad = torch.nn.utils.rnn.pad_sequence
        return {"input_ids": pad(ids, batch_first=True), "attention_mask": pad(mask, batch_first=True)}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add token_embeddings (B, T, d) with their attention_mask, and where `pooled` sentence_embedding (B, d).

        That is the pooled vector of a classifier, and the unit vector of an encoder.
        """
        states, mask, _ = self.model.base_model.states(features["input_ids"], features["attention_mask"].bool())
        features.update(token_embeddings=states, attention_mask=mask.long())
        if self.pooled:
            pooled = self.model.pool(states, mask)
            encoder = isinstance(self.model, AdeForSentenceEmbedding)
            features["sentence_embedding"] = self.model.unit_vectors(pooled) if encoder else pooled
        return features

    def get_embedding_dimension(self) -> int:
        """The size of the vectors."""
        encoder = self.pooled and isinstance(self.model, AdeForSentenceEmbedding)
        return self.model.settings.output_size if encoder else self.model.config.hidden_size

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write an ADE model folder (always safetensors) and this module's settings."""
        self.model.save_pretrained(output_path)
        (Path(output_path) / CARD).unlink()  # it describes a classifier; sentence-transformers writes its own
        self.save_config(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "AdeModule":
        """Load what `save` has written, from a folder or the hub."""
        source = {name: options.get(name) for name in ("token", "cache_folder", "revision", "local_files_only")}
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **source)
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **source)
        if folder is None or not config:
            raise InputError(f"{model_name_or_path}: holds no {cls.config_file_name}; it was not saved by AdeModule")
        return cls(model_of(Saved.read(folder)), **config)
