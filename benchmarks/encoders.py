"""Whole Hugging Face encoders fine-tuned on the rows: peers to measure against, and teachers to learn from."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ade.cli.sizes import Sizes, folder_sizes
from ade.data.batches import encode, shuffled_batches, sorted_batches
from ade.data.dataset import Dataset
from ade.devices import resolve_device
from ade.files import new_folder
from ade.progress import Report, quiet, silent

EPOCHS, RATE = 3, 5e-5
FEW, FEW_EPOCHS, FEW_RATE = 20_000, 15, 1e-4  # up to so many rows: chosen on rows held back of the small sets
DECAY, MAX_TOKENS = 0.01, 256


class FineTuned:
    """An encoder with a classification head, trained whole."""

    def __init__(self, source: str | Path, names: Sequence[str], device: str) -> None:
        labels = {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        with quiet():
            self.wrapped = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=len(names), dtype=torch.float32, trust_remote_code=False, **labels
            )
        self.model.to(resolve_device(device))
        self.device = resolve_device(device)
        self.tokenizer = Tokenizer.from_str(self.wrapped.backend_tokenizer.to_str())
        self.tokenizer.no_padding()

    def fit(self, rows: Dataset, seed: int, report: Report = silent) -> "FineTuned":
        """The customary recipe: AdamW, a short warm-up, linear decay; more epochs at a higher rate for few rows."""
        size, epochs, rate = (64, EPOCHS, RATE) if len(rows) > FEW else (32, FEW_EPOCHS, FEW_RATE)
        steps = epochs * -(-len(rows) // size)
        torch.manual_seed(seed)
        texts = encode(self.tokenizer, rows.texts, MAX_TOKENS).to(self.device)
        labels = torch.from_numpy(rows.labels).to(self.device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate, weight_decay=DECAY, fused=True)
        self.model.train()
        order = [batch for epoch in range(epochs) for batch in shuffled_batches(texts.lengths, size, seed + epoch)]
        for step, batch in enumerate(order):
            for group in optimizer.param_groups:
                group["lr"] = rate * min((step + 1) / (0.06 * steps), (steps - step) / (0.94 * steps))
            loss = nn.functional.cross_entropy(
                self._logits(texts.padded(batch)), labels[torch.from_numpy(batch).to(self.device)]
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            report("fine-tune", step + 1, steps, {})
        self.model.eval()
        return self

    def _logits(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self.model(input_ids=batch[0], attention_mask=batch[1].long()).logits.float()

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Class numbers of raw texts."""
        encoded = encode(self.tokenizer, texts, MAX_TOKENS).to(self.device)
        found = np.empty(len(encoded), dtype=np.int64)
        for rows in sorted_batches(encoded.lengths):
            found[rows] = self._logits(encoded.padded(rows)).argmax(1).cpu().numpy()
        return found

    def sizes(self) -> Sizes:
        """Bytes of the folder `save` writes."""
        with tempfile.TemporaryDirectory() as out:
            self.save(Path(out) / "model")
            return folder_sizes(Path(out) / "model")

    def save(self, folder: Path) -> None:
        """Write a folder transformers can load."""
        with quiet(), new_folder(folder, {"config.json"}) as draft:
            self.model.save_pretrained(draft)
            self.wrapped.save_pretrained(draft)
            self.tokenizer.save(str(draft / "tokenizer.json"), pretty=False)  # transformers indents it
