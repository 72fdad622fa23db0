"""Training tasks: labels of texts, and tags of words; vectors of texts are in `encoder_task.py`.

A task holds the tokenized rows and knows how to make the model, validate it and turn it into a predictor. The training
loop is the same for all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ade.classifier import Classifier, Tagger, predict_logits
from ade.codebook import Codebook
from ade.compression.coded_table import CodedTable
from ade.data.batches import Encoded, encode
from ade.data.conll import TaggedDataset
from ade.data.dataset import Dataset
from ade.data.problems import MULTI, REGRESSION
from ade.data.tag_tokens import encode_tagged
from ade.data.tokenize import WINDOWS
from ade.evaluation import EVALUATIONS, TagEvaluation, evaluate_scores, evaluate_tagger
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.progress import Report
from ade.sentence_encoder import SentenceEncoder
from ade.settings import Architecture, TrainingSettings, parse_size
from ade.training.encoder_task import EncoderTask
from ade.training.lexicon_fit import Fitted, fit_lexicon
from ade.training.lexicon_loss import Ragged, Validation
from ade.training.schedule import class_weights, fit_to_data


class TextTask:
    """Texts with a label, several labels or a number each."""

    kind = Classifier

    def __init__(
        self,
        codebook: Codebook | CodedTable,
        data: Dataset,
        dev: Dataset,
        architecture: Architecture,
        report: Report,
        held_back: bool = False,
    ) -> None:
        self.codebook, self.data, self.dev, self.architecture = codebook, data, dev, architecture
        self.held_back = held_back  # whether the validation rows were held back from the training rows
        max_length = WINDOWS * architecture.max_tokens
        self.whole = encode(codebook.tokenizer, data.texts, max_length, report)
        self.texts = self.whole.first(architecture.max_tokens)  # the model is trained on the first window of a text
        self.dev_texts = encode(codebook.tokenizer, dev.texts, max_length)
        self.metric = EVALUATIONS[dev.problem].best_by

        # Regression targets are standardised to mean 0 and standard deviation 1.
        self.mean, self.deviation = 0.0, 1.0
        labels = data.labels if data.targets is None else data.targets
        if data.problem == REGRESSION:
            self.mean, self.deviation = float(labels.mean()), float(labels.std())
            labels = ((labels - self.mean) / self.deviation).astype(np.float32)
        self.labels: Tensor | Encoded = torch.from_numpy(labels.astype(np.float32) if data.problem == MULTI else labels)

    def fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings, adapted to the rows if they say so."""
        return fit_to_data(settings, self.data, float(self.texts.lengths.mean()))

    def make_model(self, settings: TrainingSettings) -> AdeForSequenceClassification:
        """An untrained model."""
        config = _config_of(self.codebook, self.data, settings) | {
            "problem_type": self.data.problem,
            "label_type": self.data.label_type,
        }
        return AdeForSequenceClassification.from_codebook(self.codebook, self.data.names, self.architecture, **config)

    def validate(self, model: AdeForSequenceClassification) -> dict[str, Any]:
        """Metrics of a model on the validation rows."""
        return evaluate_scores(self.dev, self._dev_scores(model), self.dev.names).as_dict()

    def _dev_scores(self, model: AdeForSequenceClassification) -> np.ndarray:
        return predict_logits(model, self.dev_texts) * self.deviation + self.mean

    def predictor(
        self, model: AdeForSequenceClassification, settings: TrainingSettings, metrics: dict[str, Any], report: Report
    ) -> Classifier:
        """The trained model as a classifier, with a lexicon if it lowers the validation loss.

        `metrics` are the model's on the validation rows; with a lexicon they are computed again.
        """
        config = model.config
        scores = self._dev_scores(model) if settings.lexicon else None  # before the model scales its outputs itself
        if self.data.problem == REGRESSION:
            config.scale = [self.mean, self.deviation]
        if scores is not None:
            max_bytes = parse_size(settings.lexicon_size) if settings.lexicon_size else None
            fitted = self._fit_lexicon(model, scores, max_bytes, report)
            config.about["lexicon"] = {"entries": 0}
            if fitted is not None:
                scores = self._add_lexicon(model, fitted, scores)
                metrics = evaluate_scores(self.dev, scores, self.dev.names).as_dict()
        config.about["dev"] = metrics
        return Classifier(model.packed(), self.codebook.tokenizer)

    def _fit_lexicon(
        self, model: AdeForSequenceClassification, scores: np.ndarray, max_bytes: int | None, report: Report
    ) -> Fitted | None:
        """A lexicon fitted to the labels, or to soft targets where there are any and they suit better; None if none
        lowers the validation loss. `scores` are the model's on the validation rows."""
        labelled = len(self.data) if self.data.labelled is None else self.data.labelled  # rows of a teacher come after
        offsets = self.whole.offsets[: labelled + 1]
        texts = Ragged(self.whole.ids[: offsets[-1]].cpu().numpy(), offsets)
        validation = Validation(self._ragged_dev_texts(), self.dev.labels, scores)

        def fit(targets: np.ndarray) -> Fitted | None:
            return fit_lexicon(
                texts, targets[:labelled], self.data.problem, validation, self.codebook.vocabulary, model.device,
                model.config.class_weights, self.held_back, report, max_bytes,
            )  # fmt: skip

        candidates = [fit(self.data.labels)]
        if self.data.targets is not None:
            candidates.append(fit(self.data.targets))
        return min((each for each in candidates if each is not None), key=lambda each: each.loss, default=None)

    def _add_lexicon(self, model: AdeForSequenceClassification, fitted: Fitted, scores: np.ndarray) -> np.ndarray:
        """Attach a lexicon to the model; returns the validation rows' scores after that."""
        model.attach_lexicon(fitted.shape, fitted.arrays)
        model.config.about["lexicon"] = {
            "entries": fitted.shape.entries, "weight": round(fitted.weight, 4), "bytes": fitted.nbytes
        }  # fmt: skip
        if self.data.problem == REGRESSION:  # an average of both: the model's share is multiplied into its scale
            model.config.scale = [fitted.model_weight * self.mean, fitted.model_weight * self.deviation]
        return fitted.model_weight * scores + fitted.validation_logits

    def _ragged_dev_texts(self) -> Ragged:
        return Ragged(self.dev_texts.ids.cpu().numpy(), self.dev_texts.offsets)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Arrays that differ if the datasets differ, to hash."""
        assert isinstance(self.labels, Tensor)
        yield from (self.whole.ids.cpu().numpy(), self.labels.cpu().numpy(), self.dev_texts.ids.cpu().numpy())
        yield from (np.array([name.encode() for name in self.dev.names]), self.dev.labels)


@dataclass
class TagTask:
    """Sentences of words with a tag each."""

    kind: ClassVar = Tagger
    codebook: Codebook | CodedTable
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

    def fitted(self, settings: TrainingSettings) -> TrainingSettings:
        """The settings, adapted to the rows if they say so."""
        return fit_to_data(settings, self.data, float(self.texts.lengths.mean()))

    def make_model(self, settings: TrainingSettings) -> AdeForTokenClassification:
        """An untrained model."""
        config = _config_of(self.codebook, self.data, settings)
        return AdeForTokenClassification.from_codebook(self.codebook, self.data.names, self.architecture, **config)

    def validate(self, model: AdeForTokenClassification) -> dict[str, Any]:
        """Metrics of a model on the validation sentences."""
        return evaluate_tagger(Tagger(model, self.codebook.tokenizer), self.dev).as_dict()

    def predictor(
        self, model: AdeForTokenClassification, settings: TrainingSettings, metrics: dict[str, Any], report: Report
    ) -> Tagger:
        """The trained model as a tagger; `metrics` are the model's on the validation sentences."""
        model.config.about["dev"] = metrics
        return Tagger(model.packed(), self.codebook.tokenizer)

    def fingerprint(self) -> Iterator[np.ndarray]:
        """Arrays that differ if the datasets differ, to hash."""
        assert isinstance(self.labels, Encoded)
        yield from (self.texts.ids.cpu().numpy(), self.labels.ids.cpu().numpy())
        yield np.array([name.encode() for name in self.dev.names])
        yield np.array(["\n".join(words).encode() for words in self.dev.sentences])
        yield np.concatenate(self.dev.tags)


Task = TextTask | TagTask | EncoderTask
Trained = Classifier | Tagger | SentenceEncoder


def _config_of(
    codebook: Codebook | CodedTable, data: Dataset | TaggedDataset, settings: TrainingSettings
) -> dict[str, Any]:
    """Fields of the model's config that follow from the settings and the data: dropout, class weights, `about`."""
    provenance = {name: codebook.about.get(name) for name in ("teacher", "license", "cosine")}
    provenance |= {"data": data.name, "rows": len(data)}
    about = {name: value for name, value in provenance.items() if value}
    regularisation = {name: getattr(settings, name) for name in ("dropout", "token_dropout", "position_scale")}
    return {**regularisation, "class_weights": class_weights(data, settings), "about": about}
