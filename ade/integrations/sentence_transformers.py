"""ADE as the first module of a sentence-transformers model: it encodes, trains and saves as any other does.

`SentenceTransformer(modules=[AdeModule.from_codebook(codebook), Pooling(codebook.dim)])` starts from a codebook,
`SentenceTransformer(modules=[AdeModule.from_folder(model)])` from a trained classifier and its own pooling. What is
saved is a model folder of ours with the library's files beside it; weights are safetensors.
"""

try:
    from sentence_transformers.base.modules import InputModule
except ImportError:
    try:
        from sentence_transformers.models import InputModule  # before 5.4
    except ImportError:
        raise ImportError("AdeModule needs sentence-transformers: pip install 'ade-embeddings[sentence]'") from None

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ade.classifier import load_model, write_model
from ade.codebook import Codebook
from ade.data.tokenize import check_texts, encode_chunks, truncating
from ade.errors import InputError
from ade.files import kind_of
from ade.model import AdeForSequenceClassification, AdeForTokenClassification, AdeModel
from ade.model_card import CARD
from ade.pretrained import AdePreTrainedModel
from ade.settings import Architecture

STATIC = Architecture(sat=False, positions="none")
KINDS: dict[str, type[AdePreTrainedModel]] = {
    kind.__name__: kind for kind in (AdeModel, AdeForSequenceClassification, AdeForTokenClassification)
}


class AdeModule(InputModule):
    """Texts -> a vector for each token, and with `pooled` one for the text.

    In the mode `anchors` the tokens are anchors. A model's last layer stays in it, as it was, and is not used.
    """

    config_file_name = "ade_module.json"
    config_keys: list[str] = ["pooled", "special_tokens"]  # noqa: RUF012 - the library's own form

    def __init__(
        self, model: AdePreTrainedModel, tokenizer: Tokenizer, pooled: bool = False, special_tokens: bool = True
    ) -> None:
        """Around a model; `special_tokens` are what its tokenizer puts around a text."""
        super().__init__()
        if pooled and not isinstance(model, AdeForSequenceClassification):
            raise InputError(f"{type(model).__name__} has no pooling of its own: leave out pooled, and add a Pooling")
        self.model, self.pooled, self.special_tokens = model, pooled, special_tokens
        self.tokenizer = truncating(tokenizer, model.config.max_tokens)
        if isinstance(model, (AdeForSequenceClassification, AdeForTokenClassification)):
            model.classifier.requires_grad_(False)
        if isinstance(model, AdeForSequenceClassification):
            model.pooler.requires_grad_(pooled and model.config.pooling == "attention")

    @classmethod
    def from_codebook(cls, codebook: Codebook, architecture: Architecture | None = None, **noise: Any) -> "AdeModule":
        """Composed tokens as they are, for a `Pooling` to follow; or with an architecture, a model yet to be trained.

        `noise` is dropout, token_dropout and position_scale of `AdeConfig`.
        """
        noise = {"dropout": 0.0 if architecture is None else 0.1, "position_scale": 0.1, **noise}
        model = AdeModel.from_codebook(codebook, architecture=architecture or STATIC, **noise)
        return cls(model, codebook.tokenizer, special_tokens=False)

    @classmethod
    def from_folder(cls, folder: str | Path, pooled: bool = True) -> "AdeModule":
        """A trained model; `pooled` as it pools for its classifier, else a vector a token for a `Pooling` to follow."""
        return cls(*_load(folder), pooled)

    @property
    def max_seq_length(self) -> int:
        """Tokens a text is cut to."""
        return self.model.config.max_tokens

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        if value <= self.tokenizer.num_special_tokens_to_add(False):
            raise InputError(f"max_seq_length must leave room for special tokens and one more, not {value}")
        self.model.config.max_tokens = value
        self.tokenizer.enable_truncation(value)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Token ids and their mask, padded to the longest text; a text without any token is id 0."""
        check_texts(inputs)
        texts = [(prompt or "") + text for text in inputs]
        rows = chain.from_iterable(
            encode_chunks(self.tokenizer, texts, self.max_seq_length, special=self.special_tokens)
        )
        ids = [torch.tensor(row.ids or [0]) for row in rows]
        mask = [torch.ones_like(row) for row in ids]
        pad = torch.nn.utils.rnn.pad_sequence
        return {"input_ids": pad(ids, batch_first=True), "attention_mask": pad(mask, batch_first=True)}

    def tokenize(self, texts: Sequence[str], **kwargs: Any) -> dict[str, Tensor]:
        """As `preprocess`; what versions before 5.4 call."""
        return self.preprocess(texts, **kwargs)

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add token_embeddings (B, T, d) and their mask, and where it pools sentence_embedding (B, d)."""
        states, mask = self.model.base_model.states(features["input_ids"], features["attention_mask"].bool())
        features.update(token_embeddings=states, attention_mask=mask.long())
        if self.pooled:
            features["sentence_embedding"] = self.model.pool(states, mask)
        return features

    def get_embedding_dimension(self) -> int:
        """d, the width of a vector."""
        return self.model.config.hidden_size

    get_word_embedding_dimension = get_sentence_embedding_dimension = get_embedding_dimension  # before 5.4

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write a model folder of ours (safetensors, whatever is asked), and how it is used here."""
        write_model(self.model, self.tokenizer, Path(output_path))
        (Path(output_path) / CARD).unlink()  # it tells of a classifier; the library writes its own
        self.save_config(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> "AdeModule":
        """Read what `save` has written, from a folder or the hub."""
        where = {name: options.get(name) for name in ("token", "cache_folder", "revision", "local_files_only")}
        folder = cls.load_dir_path(model_name_or_path, subfolder=subfolder, **where)
        config = cls.load_config(model_name_or_path, subfolder=subfolder, **where)
        if folder is None or not config:
            raise InputError(f"{model_name_or_path}: holds no {cls.config_file_name}; it was not saved by AdeModule")
        return cls(*_load(folder), **config)


def _load(source: str | Path) -> tuple[AdePreTrainedModel, Tokenizer]:
    """The model of a folder, of whichever kind it was saved as, and its tokenizer; what is none of ours is refused."""
    return load_model(KINDS.get(kind_of(source), AdeForSequenceClassification), source, "cpu")
