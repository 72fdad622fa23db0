"""A Hugging Face encoder that is fine-tuned whole."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade import Dataset
from benchmarks import library
from benchmarks.library import Report, Sizes

EPOCHS, RATE, FEW = 3, 5e-5, 20_000
FEW_EPOCHS, FEW_RATE = 15, 1e-4  # the same for at most `FEW` rows
MAX_TOKENS = 256


class FineTuned:
    """An encoder with a classification head."""

    def __init__(self, source: Path, names: Sequence[str], device: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        with library.quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=len(names), dtype=torch.float32, trust_remote_code=False, **labels
            )
        self.device = library.resolve_device(device)
        self.model.to(self.device)

    def fit(self, rows: Dataset, seed: int, report: Report = library.silent) -> "FineTuned":
        """The customary recipe: AdamW, a short warm-up, linear decay; more epochs at a higher rate for few rows."""
        size, epochs, rate = (64, EPOCHS, RATE) if len(rows) > FEW else (32, FEW_EPOCHS, FEW_RATE)
        batches = [batch for epoch in range(epochs) for batch in shuffled_batches(rows.texts, size, seed + epoch)]
        torch.manual_seed(seed)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=0.01, fused=True)
        self.model.train()
        for step, batch in enumerate(batches):
            factor = min((step + 1) / (0.06 * len(batches)), (len(batches) - step) / (0.94 * len(batches)))
            optimizer.param_groups[0]["lr"] = rate * factor
            scores = self._scores([rows.texts[i] for i in batch])
            loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(rows.labels[batch]).to(self.device))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            report("fine-tune", step + 1, len(batches), {})
        self.model.eval()
        return self

    def _scores(self, texts: Sequence[str]) -> torch.Tensor:
        batch = self.tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS, padding=True, return_tensors="pt")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(**batch.to(self.device)).logits.float()

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Class numbers of raw texts."""
        order = np.argsort([len(text) for text in texts], kind="stable")
        parts = [self._scores([texts[i] for i in order[start : start + 64]]) for start in range(0, len(order), 64)]
        labels = np.empty(len(texts), np.int64)
        labels[order] = torch.cat(parts).argmax(1).cpu().numpy()
        return labels

    def sizes(self) -> Sizes:
        """Bytes of the folder that transformers writes."""
        with library.quiet(), tempfile.TemporaryDirectory() as out:
            self.model.save_pretrained(out)
            self.tokenizer.save_pretrained(out)
            return library.folder_sizes(Path(out))


def shuffled_batches(texts: Sequence[str], size: int, seed: int) -> list[np.ndarray]:
    """Row numbers in random order, texts of a batch about as long: sorted within pools of many batches."""
    lengths, generator = np.array([len(text) for text in texts]), np.random.default_rng(seed)
    order, pool = generator.permutation(len(texts)), 50 * size
    pools = [order[start : start + pool] for start in range(0, len(order), pool)]
    ordered = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in pools])
    batches = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return [batches[i] for i in generator.permutation(len(batches))]
