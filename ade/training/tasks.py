"""Training tasks: labels of texts, and tags of words; vectors of texts are in `ade/encoders`.

A task holds the tokenized rows and knows the untrained model, how to validate it and how to finish it. The training
loop is the same for all.
"""

from collections.abc import Iterator
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
from ade.evaluation import EVALUATIONS, TagEvaluation, compare_tags, evaluate_scores
from ade.folder import Saved
from ade.model import TorchModel
from ade.progress import Report
from ade.settings import Architecture, TrainingSettings, parse_size
from ade.torch_backends import TorchBackend
from ade.training.lexicon_fit import FittedLexicon, Objective, Validation, fit_lexicon
from ade.training.schedule import fit_to_data
from ade.training.start import config_for, untrained


class Task(Protocol):
    """What the loop trains."""

    texts: Ragged  # tokens of the training rows
    labels: Tensor | Ragged  # one per row, or one per token
    metric: str  # that the best weights are chosen by
    max_tokens: int  # of a text that the model reads
    dev_rows: int  # number of validation rows

    def fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """Return the settings, adapted to the rows if they say so."""

    def untrained(self, settings: TrainingSettings) -> Saved:
        """Return the model that training starts with."""

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return metrics of a model on the validation rows."""

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the finished model: measured as it is stored, with what does not need the loop."""

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""


class _LabelTask:
    """What labels of texts and tags of words have in common."""

    texts: Ragged

    def __init__(self, start: Saved, data: Dataset | TaggedDataset, dev_rows: int, architecture: Architecture) -> None:
        self.start, self.rows, self.dev_rows, self.architecture = start, data, dev_rows, architecture
        self.max_tokens = architecture.max_tokens

    def fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """Return the settings, adapted to the rows if they say so."""
        return fit_to_data(settings, self.rows, float(np.minimum(self.texts.lengths, self.max_tokens).mean()))

    def untrained(self, settings: TrainingSettings) -> Saved:
        """Return the model that training starts with."""
        config = config_for(self.start, self.rows, self.architecture, settings)
        return untrained(self.start, config, settings.seed)


class TextTask(_LabelTask):
    """Texts with a label, several labels or a number each."""

    def __init__(
        self,
        start: Saved,
        data: Dataset,
        dev: Dataset,
        architecture: Architecture,
        report: Report,
        dev_from_training: bool = False,
    ) -> None:
        """`dev_from_training` says that the validation rows were split off the training rows."""
        super().__init__(start, data, len(dev), architecture)
        self.data, self.dev, self.dev_from_training = data, dev, dev_from_training
        most = max(self.max_tokens, LEXICON_TOKENS)
        self.texts = tokenize(start.tokenizer, data.texts, most, report)  # attention reads the first tokens of each
        self.dev_texts = tokenize(start.tokenizer, dev.texts, most)
        self.metric = EVALUATIONS[dev.problem].best_by

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
        """Return the model as it is stored, with a lexicon if that lowers the validation loss."""
        saved = replace(trained, config=replace(trained.config, mean=self.mean, deviation=self.deviation)).rounded()
        scores = backend_for(saved, settings.device).scores(self.dev_texts)
        if settings.lexicon:
            fitted = self._fit_lexicon(saved, scores, settings, report)
            saved = saved.with_metadata(lexicon={"entries": 0})
            if fitted is not None:
                saved, scores = self._with_lexicon(saved, fitted), fitted.model_weight * scores + fitted.added
        return saved.with_metadata(dev=evaluate_scores(self.dev, scores, self.dev.names).as_dict())

    def _fit_lexicon(
        self, saved: Saved, scores: np.ndarray, settings: TrainingSettings, report: Report
    ) -> FittedLexicon | None:
        """A lexicon fitted to the labels, or to soft targets where there are any and they suit better; None if none
        lowers the validation loss. `scores` are the model's on the validation rows."""
        labelled = len(self.data) if self.data.labelled is None else self.data.labelled  # rows of a teacher come after
        objective = Objective.of(self.dev.labels, self.data.problem, saved.config.class_weights)
        texts, validation = self.texts.slice(0, labelled), Validation(self.dev_texts, scores, objective)
        max_bytes = parse_size(settings.lexicon_size) if settings.lexicon_size else None

        candidates = []
        for targets in [self.data.labels] + ([] if self.data.targets is None else [self.data.targets]):
            fitted = fit_lexicon(
                saved, texts, targets[:labelled], validation, settings.device, self.dev_from_training, max_bytes, report
            )
            if fitted is not None:
                candidates.append(fitted)
        return min(candidates, key=lambda each: each.loss, default=None)

    def _with_lexicon(self, saved: Saved, fitted: FittedLexicon) -> Saved:
        facts = {"entries": len(fitted.lexicon), "weight": round(fitted.weight, 4), "bytes": fitted.lexicon.nbytes}
        config = saved.config.with_metadata(lexicon=facts)
        if self.data.problem == REGRESSION:  # an average of both: the model's share is multiplied into its scale
            mean, deviation = fitted.model_weight * self.mean, fitted.model_weight * self.deviation
            config = replace(config, mean=mean, deviation=deviation)
        return replace(saved, config=config, lexicon=fitted.lexicon)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""
        assert isinstance(self.labels, Tensor)
        yield from (self.texts.ids, self.texts.offsets, self.labels.numpy(), self.dev_texts.ids, self.dev.labels)
        yield np.array([name.encode() for name in self.dev.names])


class TagTask(_LabelTask):
    """Sentences of words with a tag each."""

    metric = TagEvaluation.best_by

    def __init__(
        self, start: Saved, data: TaggedDataset, dev: TaggedDataset, architecture: Architecture, report: Report
    ) -> None:
        super().__init__(start, data, len(dev), architecture)
        self.dev = dev
        self.labels: Tensor | Ragged
        self.texts, self.labels = encode_tagged(start.tokenizer, data, self.max_tokens, report)
        self.dev_texts, self.dev_words = encode_sentences(start.tokenizer, dev.sentences, self.max_tokens)

    def validate(self, model: TorchModel) -> dict[str, Any]:
        """Return metrics of a model on the validation sentences."""
        return self._metrics(TorchBackend(model).token_scores(self.dev_texts)[1])

    def finish(self, trained: Saved, settings: TrainingSettings, report: Report) -> Saved:
        """Return the model as it is stored."""
        saved = trained.rounded()
        scores = backend_for(saved, settings.device).token_scores(self.dev_texts)[1]
        return saved.with_metadata(dev=self._metrics(scores))

    def _metrics(self, scores: np.ndarray) -> dict[str, Any]:
        tags = tags_of_words(scores, self.dev_texts, self.dev_words, self.dev.sentences, self.dev.names)
        return compare_tags(self.dev.tags, tags, self.dev.names).as_dict()

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Yield arrays that differ if the rows differ, to hash."""
        assert isinstance(self.labels, Ragged)
        yield from (self.texts.ids, self.texts.offsets, self.labels.ids, self.dev_texts.ids, self.dev_words)
        yield np.concatenate(self.dev.tags)
        yield np.array([name.encode() for name in self.dev.names])
