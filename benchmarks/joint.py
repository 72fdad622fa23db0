"""The lexicon trained together with the model through one loss, in place of fitted by itself after it.

Its entries are those `fit_lexicon` starts from; their scores start at zero. How fast they learn beside the model is
chosen by validation accuracy, as are the weights that are kept.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ade.classifier import predict_logits
from ade.data.batches import encode, shuffled_batches
from ade.data.tokenize import WINDOWS
from ade.evaluation import evaluate_scores
from ade.lexicon import Lexicon
from ade.lexicon_layer import LexiconTables, look_up, sum_distinct
from ade.model import AdeForSequenceClassification
from ade.progress import Report
from ade.settings import Architecture, TrainingSettings
from ade.training.lexicon_fit import MAX_WEIGHTS, count_entries
from ade.training.lexicon_loss import Ragged
from ade.training.loop import EVALUATIONS, make_accelerator
from ade.training.schedule import fit_to_data, held_back, learning_rate, steps_of
from ade.training.step import TrainStep
from ade.training.tasks import TextTask
from benchmarks.accuracy import Places, codebook_for, load_lesson, training_of
from benchmarks.records import Run


class TrainedLexicon(nn.Module):
    """The layer of a lexicon whose scores and bias are parameters, zero-initialised, and learn `rate` times as fast."""

    def __init__(self, lexicon: Lexicon, rate: float, device: torch.device) -> None:
        super().__init__()
        self.tables, self.rate = LexiconTables.of(lexicon, device), rate
        self.scores = nn.Parameter(torch.zeros(len(lexicon), len(lexicon.bias), device=device))
        self.bias = nn.Parameter(torch.zeros(len(lexicon.bias), device=device))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what the entries of each text add to its class scores: (B, C)."""
        scores = self.rate * torch.cat([self.scores, torch.zeros_like(self.scores[:1])])  # the last row: no entry
        tables = replace(self.tables, scores=scores, bias=self.bias)
        return sum_distinct(tables, look_up(tables, ids, mask))


def run_joint(run: Run, places: Places, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metrics of a model and a lexicon trained through one loss."""
    settings = run.settings
    rows, dev, test, about = load_lesson(places, settings, report)
    training, shape = training_of(settings["training"], places.device), Architecture(**settings["architecture"])
    if dev is None:
        rows, dev = held_back(rows, training.seed)
    codebook = codebook_for(places, settings["teacher"], settings["distillation"], report)
    task = TextTask(codebook, rows, dev.relabelled(rows.names), shape, report)
    lexicon = _unfitted(task)

    began = time.perf_counter()
    validation, models = {}, {}
    for rate in settings["rates"]:
        models[rate], validation[rate] = _train(task, lexicon, rate, training, report)
    best = max(validation, key=lambda rate: validation[rate])

    texts = encode(codebook.tokenizer, list(test.texts), WINDOWS * shape.max_tokens)
    metrics = evaluate_scores(test.relabelled(rows.names), predict_logits(models[best], texts), rows.names).as_dict()
    chosen = {"rate": best, "validation_accuracy": {str(rate): found for rate, found in validation.items()}}
    return {**metrics, **chosen, "entries": len(lexicon), "train_seconds": time.perf_counter() - began}, {"data": about}


def _unfitted(task: TextTask) -> Lexicon:
    """The n-grams of the training rows with their inverse document frequencies, as `fit_lexicon` starts from them."""
    texts, labels = Ragged(task.whole.ids.numpy(), task.whole.offsets), len(task.data.names)
    keys, counts = count_entries(texts, task.codebook.vocabulary, MAX_WEIGHTS // labels)
    idf = (np.log(len(task.data) / counts) + 1).astype(np.float32)
    zeros = np.zeros((len(keys), labels), np.float32)
    return Lexicon(task.codebook.vocabulary, keys, idf, zeros, np.zeros(labels, np.float32))


def _train(
    task: TextTask, lexicon: Lexicon, rate: float, settings: TrainingSettings, report: Report
) -> tuple[AdeForSequenceClassification, float]:
    """Train both by the preset's schedule; returns the model with its best validation weights, and their accuracy."""
    accelerator = make_accelerator(settings)
    settings = fit_to_data(settings, task.data, float(task.texts.lengths.mean()))
    torch.manual_seed(settings.seed)
    model = task.make_model(settings).to(accelerator.device)
    model.lexicon = TrainedLexicon(lexicon, rate, accelerator.device)
    assert isinstance(task.labels, Tensor)
    texts, labels = task.texts.to(accelerator.device), task.labels.to(accelerator.device)
    train = TrainStep(accelerator, model, settings.learning_rate, settings.weight_decay, texts, labels, record=False)

    total = settings.steps or steps_of(settings, len(task.texts))
    best, kept, step, epoch = -1.0, dict(model.state_dict()), 0, 0
    while step < total:
        batches = shuffled_batches(task.texts.lengths, settings.batch_size, settings.seed * 7919 + epoch)
        for batch in batches[: total - step]:
            train.step(batch, settings.seed * 1_000_003 + step, learning_rate(step, total, settings))
            step += 1
            if step % max(1, total // EVALUATIONS) == 0 or step == total:
                accuracy = float(task.validate(model)["accuracy"])
                report("train", step, total, {"dev_accuracy": accuracy})
                if accuracy >= best:
                    best, kept = accuracy, {name: each.detach().clone() for name, each in model.state_dict().items()}
        epoch += 1
    model.load_state_dict(kept)
    return model, best
