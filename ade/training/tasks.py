"""Training tasks: labels of texts, and tags of words; vectors of texts are in `ade/encoders`.

A task holds the tokenized rows and knows how to validate a model and how to finish it. The training loop is the same
for all.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ade.backends import backend_for
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.data.tags import TaggedDataset, encode_sentences, encode_tagged
from ade.data.tokens import LEXICON_TOKENS, Ragged, tokenize
from ade.decision import tags_of_words
from ade.evaluation import BEST_BY, compare_tags, evaluate_scores
from ade.fitting.estimate import estimate
from ade.fitting.lexicon_fit import calibrated, lexicon_facts
from ade.fitting.objective import Objective
from ade.fitting.validation import Fold, Validation
from ade.folder import Saved
from ade.model import TorchModel
from ade.progress import Report
from ade.settings import TrainingSettings
from ade.torch_backends import TorchBackend
from ade.training.schedule import lexicon_bytes


class Task(Protocol):
    """What the loop trains."""

    texts: Ragged  # tokens of the training rows
    labels: Tensor | Ragged  # one per row, or one per token
    metric: str  # that the best weights are chosen by
    dev_texts: Ragged  # tokens of the validation rows

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return metrics of a model on the validation rows."""

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the finished model: measured as it is stored, with what does not need the loop."""

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""


class TextTask:
    """Texts with a label, several labels or a number each."""

    def __init__(
        self,
        start: Saved,
        data: Dataset,
        dev: Dataset,
        max_tokens: int,
        report: Report,
        dev_from_training: bool = False,
        instead: Callable[[], Saved] | None = None,
    ) -> None:
        """`dev_from_training` says that the validation rows were split off the training rows.

        `instead` makes what is returned where training did not improve what it started from.
        """
        self.start, self.instead = start, instead
        self.data, self.dev, self.dev_from_training = data, dev, dev_from_training
        self.metric = BEST_BY[dev.problem]
        most = max(max_tokens, LEXICON_TOKENS)  # attention reads the first tokens of each text, a lexicon all
        self.texts = tokenize(start.tokenizer, data.texts, most, report)
        self.dev_texts = tokenize(start.tokenizer, dev.texts, most)

        # Regression targets are standardised to mean 0 and standard deviation 1.
        self.mean, self.deviation = 0.0, 1.0
        labels = data.labels if data.targets is None else data.targets
        if data.problem == REGRESSION:
            self.mean, self.deviation = float(labels.mean()), float(labels.std())
            labels = ((labels - self.mean) / self.deviation).astype(np.float32)
        self.labels: Tensor | Ragged = torch.from_numpy(labels.astype(np.float32) if data.problem == MULTI else labels)

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return metrics of a model on the validation rows."""
        scores = TorchBackend(model).scores(self.dev_texts) * self.deviation + self.mean
        return evaluate_scores(self.dev, scores, self.dev.names).as_dict()

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the model as it is stored, calibrated, with a lexicon if that lowers the validation loss."""
        saved = replace(trained, config=replace(trained.config, mean=self.mean, deviation=self.deviation)).rounded()
        scores = (backend_for(saved, settings.device).scores(self.dev_texts) - self.mean) / self.deviation
        labelled = len(self.data) if self.data.labelled is None else self.data.labelled  # rows of a teacher come after
        labels = np.concatenate([self.data.labels[:labelled], self.dev.labels])
        if self.dev.problem == REGRESSION:
            labels = (labels - self.mean) / self.deviation
        objective = Objective.of(labels, self.dev.problem, len(self.dev.names), saved.config.class_weights)
        learned, unseen = np.split(np.arange(len(objective)), [labelled])
        found = calibrated(
            self.texts.slice(0, labelled) + self.dev_texts,
            saved.table.vocabulary,
            Validation(objective, [Fold(learned, unseen)], report),
            np.arange(len(objective)) if self.dev_from_training else learned,
            scores.astype(np.float32),
            lexicon_bytes(settings),
            self.deviation,
        )
        if self.instead is not None and not self._improved(objective.take(unseen), found.scores):
            return self.instead().with_metadata(kept="fits")
        head = {name: found.factor * saved.layers[name] for name in ("head.weight", "head.bias")}
        saved = replace(saved, layers={**saved.layers, **head}, lexicon=found.lexicon).rounded()
        metrics = evaluate_scores(self.dev, found.scores * self.deviation + self.mean, self.dev.names).as_dict()
        saved = saved.with_metadata(dev=metrics, estimate=estimate(metrics, self.metric, len(self.dev)))
        return saved.with_metadata(lexicon=lexicon_facts(found.lexicon)) if settings.lexicon else saved

    def _improved(self, judge: Objective, scores: np.ndarray) -> bool:
        """Whether the scores are better than those of the start, by more than the error of the difference."""
        before = (backend_for(self.start).scores(self.dev_texts) - self.mean) / self.deviation
        gain = judge.losses(before) - judge.losses(scores)
        if judge.problem != REGRESSION:
            hits = [judge.hits(each).reshape(len(judge), -1).mean(1) for each in (before, scores)]
            gain = hits[1] - hits[0]
        return float(gain.mean()) > float(gain.std()) / len(judge) ** 0.5

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""
        assert isinstance(self.labels, Tensor)
        yield from (self.texts.ids, self.texts.offsets, self.labels.numpy(), self.dev_texts.ids, self.dev.labels)
        yield np.array([name.encode() for name in self.dev.names])


class TagTask:
    """Sentences of words with a tag each."""

    metric = "f1"

    def __init__(self, start: Saved, data: TaggedDataset, dev: TaggedDataset, max_tokens: int, report: Report) -> None:
        self.dev = dev
        self.labels: Tensor | Ragged
        self.texts, self.labels = encode_tagged(start.tokenizer, data, max_tokens)
        self.dev_texts, self.dev_words = encode_sentences(start.tokenizer, dev.sentences, max_tokens)

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return metrics of a model on the validation sentences."""
        return self._metrics(TorchBackend(model).token_scores(self.dev_texts)[1])

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the model as it is stored."""
        saved = trained.rounded()
        scores = backend_for(saved, settings.device).token_scores(self.dev_texts)[1]
        metrics = self._metrics(scores)
        return saved.with_metadata(dev=metrics, estimate=estimate(metrics, self.metric, len(self.dev)))

    def _metrics(self, scores: np.ndarray) -> dict[str, Any]:
        tags = tags_of_words(scores, self.dev_texts, self.dev_words, self.dev.sentences, self.dev.names)
        return compare_tags(self.dev.tags, tags, self.dev.names).as_dict()

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""
        assert isinstance(self.labels, Ragged)
        yield from (self.texts.ids, self.texts.offsets, self.labels.ids, self.dev_texts.ids, self.dev_words)
        yield np.concatenate(self.dev.tags)
        yield np.array([name.encode() for name in self.dev.names])
