"""ADE as the input module of a sentence-transformers model, for encoding, training and saving.

`SentenceTransformer(modules=[AdeModule.from_folder(model)])` starts from an encoder or a trained classifier, and pools
as that does. `save` writes an ADE model folder (safetensors) with the files of sentence-transformers beside it.
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

from ade.data.tokens import check_texts, encode_chunks, truncating
from ade.errors import InputError
from ade.folder import Saved
from ade.model import AdeForSentenceEmbedding, model_of
from ade.model_card import CARD
from ade.pretrained import AdePreTrainedModel


class AdeModule(InputModule):
    """Texts -> a vector for each token and one for the text: a classifier's pooled vector, an encoder's unit vector.

    A model with `attend="anchors"` gives a vector for each anchor of each token. The classification layer of a trained
    model is kept unchanged, but not used.
    """

    def __init__(self, model: AdePreTrainedModel) -> None:
        super().__init__()
        if not hasattr(model, "pooler"):
            raise InputError(f"{type(model).__name__} gives no vectors of texts; give a classifier or an encoder")
        self.model, self.is_encoder = model, isinstance(model, AdeForSentenceEmbedding)
        self.tokenizer = truncating(model.tokenizer, model.settings.max_tokens)
        model.head.requires_grad_(self.is_encoder)
        model.pooler.requires_grad_(model.settings.pooling == "attention")

    @classmethod
    def from_folder(cls, folder: str | Path) -> "AdeModule":
        """A trained model."""
        return cls(model_of(Saved.read(folder)))

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
        rows = chain.from_iterable(encode_chunks(self.tokenizer, texts, self.max_seq_length))
        ids = [torch.tensor(row.ids or [0]) for row in rows]
        mask = [torch.ones_like(row) for row in ids]
        pad = torch.nn.utils.rnn.pad_sequence
        return {"input_ids": pad(ids, batch_first=True), "attention_mask": pad(mask, batch_first=True)}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add token_embeddings (B, T, d) with their attention_mask, and sentence_embedding (B, d)."""
        states, mask, _ = self.model.base_model.states(features["input_ids"], features["attention_mask"].bool())
        pooled = self.model.pool(states, mask)
        vectors = self.model.unit_vectors(pooled) if self.is_encoder else pooled
        features.update(token_embeddings=states, attention_mask=mask.long(), sentence_embedding=vectors)
        return features

    def get_embedding_dimension(self) -> int:
        """The size of the vectors."""
        return self.model.settings.output_size if self.is_encoder else self.model.config.hidden_size

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write an ADE model folder (always safetensors)."""
        self.model.save_pretrained(output_path)
        (Path(output_path) / CARD).unlink()  # it describes a classifier; sentence-transformers writes its own

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "AdeModule":
        """Load what `save` has written, from a folder or the hub."""
        source = {name: options.get(name) for name in ("token", "cache_folder", "revision", "local_files_only")}
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **source)
        return cls.from_folder(folder)
