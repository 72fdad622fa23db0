"""The training task of an encoder: texts, each with the vector that a teacher gives it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ade.codebook import Codebook
from ade.compression.coded_table import CodedTable
from ade.data.batches import Encoded
from ade.data.problems import REGRESSION
from ade.progress import Report
from ade.sentence_encoder import SentenceEncoder, embed
from ade.sentence_model import AdeForSentenceEmbedding
from ade.settings import Architecture, TrainingSettings

HELD_BACK = 0.05  # of the texts, for validation
MOST_HELD_BACK = 2000


@dataclass
class EncoderTask:
    """Texts and the unit vectors of a teacher; some of them are held back for validation."""

    kind: ClassVar = SentenceEncoder
    metric: ClassVar[str] = "cosine"
    codebook: Codebook | CodedTable
    encoded: Encoded  # the texts, tokenized
    vectors: np.ndarray  # (n, D) float16, may be memory-mapped
    architecture: Architecture
    about: dict[str, Any]  # for the model card: teacher, data, number of texts
    seed: int

    def __post_init__(self) -> None:
        order = np.random.default_rng(self.seed).permutation(len(self.encoded))
        held_back = min(max(1, int(HELD_BACK * len(order))), MOST_HELD_BACK)
        self.dev, rows = np.sort(order[:held_back]), np.sort(order[held_back:])
        self.texts, self.dev_texts = self.encoded.take(rows), self.encoded.take(self.dev)
        self.labels: Tensor | Encoded = torch.from_numpy(self.vectors)[torch.from_numpy(rows)]
        self.dev_vectors = self.vectors[self.dev].astype(np.float32)

    def fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings as they are."""
        return settings

    def make_model(self, settings: TrainingSettings) -> AdeForSentenceEmbedding:
        """An untrained model."""
        return AdeForSentenceEmbedding.from_codebook(
            self.codebook, (), self.architecture, output_size=self.vectors.shape[1], problem_type=REGRESSION,
            dropout=settings.dropout, token_dropout=settings.token_dropout, position_scale=settings.position_scale,
            about=self.about,
        )  # fmt: skip

    def validate(self, model: AdeForSentenceEmbedding) -> dict[str, Any]:
        """The mean cosine of the held-back texts' vectors with those of the teacher."""
        vectors = embed(model, self.dev_texts)
        wanted = self.dev_vectors / np.linalg.norm(self.dev_vectors, axis=1, keepdims=True)
        return {"cosine": float((vectors * wanted).sum(1).mean())}

    def predictor(
        self, model: AdeForSentenceEmbedding, settings: TrainingSettings, metrics: dict[str, Any], report: Report
    ) -> SentenceEncoder:
        """The trained model as an encoder; `metrics` are the model's on the held-back texts."""
        model.config.about["dev"] = metrics
        return SentenceEncoder(model.packed(), self.codebook.tokenizer)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Arrays that differ if the texts or the teacher differ, to hash."""
        assert isinstance(self.labels, Tensor)
        yield from (self.texts.ids.cpu().numpy(), self.labels.numpy(), self.dev_texts.ids.cpu().numpy())
