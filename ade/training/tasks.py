"""What a run learns: labels of texts, or tags of words.

A task holds the encoded rows and knows how to make the model, validate it and turn it into a predictor; the loop
knows neither texts nor words.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ade.classifier import Classifier, Tagger, predict_logits
from ade.codebook import Codebook
from ade.data.batches import Encoded, encode
from ade.data.conll import TaggedDataset, encode_tagged
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.data.tokenize import WINDOWS
from ade.evaluation import EVALUATIONS, TagEvaluation, evaluate_scores, evaluate_tagger
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.progress import Report
from ade.settings import Architecture, TrainingSettings
from ade.training.lexicon_fit import Ragged, Validation, fit_lexicon
from ade.training.schedule import class_weights


class TextTask:
    """Texts with a label, several labels or a number each."""

    def __init__(
        self, codebook: Codebook, data: Dataset, dev: Dataset, architecture: Architecture, report: Report
    ) -> None:
        self.codebook, self.data, self.dev, self.architecture = codebook, data, dev, architecture
        longest = WINDOWS * architecture.max_tokens
        self.whole = encode(codebook.tokenizer, data.texts, longest, report)
        self.texts = self.whole.first(architecture.max_tokens)  # attention is trained on the first window
        self.dev_texts = encode(codebook.tokenizer, dev.texts, longest)
        self.metric = EVALUATIONS[dev.problem].best_by
        self.mean, self.deviation = 0.0, 1.0  # numbers are learned with mean 0 and deviation 1

        labels = data.labels if data.targets is None else data.targets
        if data.problem == REGRESSION:
            self.mean, self.deviation = float(labels.mean()), float(labels.std())
            labels = ((labels - self.mean) / self.deviation).astype(np.float32)
        self.labels: Tensor | Encoded = torch.from_numpy(labels.astype(np.float32) if data.problem == MULTI else labels)

    def make_model(self, settings: TrainingSettings) -> AdeForSequenceClassification:
        """A fresh model."""
        more = _config_of(self.codebook, self.data, settings) | {"problem_type": self.data.problem}
        return AdeForSequenceClassification.from_codebook(self.codebook, self.data.names, self.architecture, **more)

    def validate(self, model: AdeForSequenceClassification) -> dict[str, Any]:
        """Metrics on the validation rows of a model that is being trained."""
        return evaluate_scores(self.dev, self._dev_scores(model), self.dev.names).as_dict()

    def _dev_scores(self, model: AdeForSequenceClassification) -> np.ndarray:
        return predict_logits(model, self.dev_texts) * self.deviation + self.mean

    def predictor(
        self, model: AdeForSequenceClassification, settings: TrainingSettings, metrics: dict[str, Any], report: Report
    ) -> Classifier:
        """The trained model as a classifier, with a lexicon where that helps.

        `metrics` are those of the model on the validation rows.
        """
        scores = self._dev_scores(model) if settings.lexicon else None
        if self.data.problem == REGRESSION:
            model.config.scale = [self.mean, self.deviation]
        if scores is not None:
            metrics = evaluate_scores(self.dev, self._add_lexicon(model, scores, report), self.dev.names).as_dict()
        model.config.about["dev"] = metrics
        return Classifier(model.packed(), self.codebook.tokenizer)

    def _add_lexicon(self, model: AdeForSequenceClassification, scores: np.ndarray, report: Report) -> np.ndarray:
        """Fit a lexicon beside the model and attach it where it helps; the scores of the validation rows after that."""
        count = len(self.data) if self.data.labelled is None else self.data.labelled  # a teacher may have added rows
        offsets = self.whole.offsets[: count + 1]
        texts = Ragged(self.whole.ids[: offsets[-1]].cpu().numpy(), offsets)
        held = Ragged(self.dev_texts.ids.cpu().numpy(), self.dev_texts.offsets)
        validation = Validation(held, self.dev.labels, scores)
        targets = [self.data.labels] if self.data.targets is None else [self.data.labels, self.data.targets]
        problem, vocabulary = self.data.problem, self.codebook.vocabulary
        found = [
            fit_lexicon(
                texts, each[:count], problem, validation, vocabulary, model.device, model.config.class_weights, report
            )
            for each in targets
        ]
        fitted = min((each for each in found if each is not None), key=lambda each: each.loss, default=None)
        if fitted is None:
            return scores
        model.attach_lexicon(fitted.shape, fitted.arrays)
        if problem == REGRESSION:  # a mixture of both: the model's share is multiplied into its scale
            model.config.scale = [fitted.model_weight * self.mean, fitted.model_weight * self.deviation]
        return fitted.model_weight * scores + fitted.lexicon().logits(*held)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Everything that tells one data set from another."""
        assert isinstance(self.labels, Tensor)
        yield from (self.whole.ids.cpu().numpy(), self.labels.cpu().numpy(), self.dev_texts.ids.cpu().numpy())
        yield from (np.array([name.encode() for name in self.dev.names]), self.dev.labels)


@dataclass
class TagTask:
    """Sentences of words with a tag each."""

    codebook: Codebook
    data: TaggedDataset
    dev: TaggedDataset
    architecture: Architecture
    report: Report

    def __post_init__(self) -> None:
        self.texts, labels = encode_tagged(
            self.codebook.tokenizer, self.data, self.architecture.max_tokens, self.report
        )
        self.labels: Tensor | Encoded = labels
        self.metric = TagEvaluation.best_by

    def make_model(self, settings: TrainingSettings) -> AdeForTokenClassification:
        """A fresh model."""
        more = _config_of(self.codebook, self.data, settings)
        return AdeForTokenClassification.from_codebook(self.codebook, self.data.names, self.architecture, **more)

    def validate(self, model: AdeForTokenClassification) -> dict[str, Any]:
        """Metrics on the validation sentences."""
        return evaluate_tagger(Tagger(model, self.codebook.tokenizer), self.dev).as_dict()

    def predictor(
        self, model: AdeForTokenClassification, settings: TrainingSettings, metrics: dict[str, Any], report: Report
    ) -> Tagger:
        """The trained model as a tagger; `metrics` are those on the validation sentences."""
        model.config.about["dev"] = metrics
        return Tagger(model.packed(), self.codebook.tokenizer)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Everything that tells one data set from another."""
        assert isinstance(self.labels, Encoded)
        yield from (self.texts.ids.cpu().numpy(), self.labels.ids.cpu().numpy())
        yield np.array([name.encode() for name in self.dev.names])
        yield np.array(["\n".join(words).encode() for words in self.dev.sentences])
        yield np.concatenate(self.dev.tags)


Task = TextTask | TagTask


def _config_of(codebook: Codebook, data: Dataset | TaggedDataset, settings: TrainingSettings) -> dict[str, Any]:
    """What the config says beside the codebook's shape: regularisation, class weights, and where the model is from."""
    known = {name: codebook.about.get(name) for name in ("teacher", "license", "cosine")}
    about = {name: value for name, value in {**known, "data": data.name, "rows": len(data)}.items() if value}
    noise = {name: getattr(settings, name) for name in ("dropout", "token_dropout", "position_scale")}
    return {**noise, "class_weights": class_weights(data, settings), "about": about}
