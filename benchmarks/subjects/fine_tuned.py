"""A Hugging Face encoder that is fine-tuned whole, by transformers' `Trainer`."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade import Dataset
from ade.devices import resolve_device
from ade.progress import quiet
from benchmarks import library

FEW = 20_000  # rows, up to which an encoder is trained for more epochs at a higher rate
MAX_TOKENS = 256


class FineTuned:
    """An encoder with a classification head."""

    def __init__(self, source: Path, names: Sequence[str], device: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        with quiet():
            self.tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                source, num_labels=len(names), dtype=torch.float32, trust_remote_code=False
            )
        self.model.to(resolve_device(device)).eval()

    def fit(self, rows: Dataset, seed: int) -> "FineTuned":
        """The customary recipe: AdamW, a short warm-up, linear decay; texts of a batch are about as long."""
        from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

        tokens = self.tokenizer(list(rows.texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
        examples = [{"input_ids": ids, "labels": label} for ids, label in zip(tokens, rows.labels, strict=True)]
        recipe: dict[str, Any] = {"num_train_epochs": 3, "learning_rate": 5e-5, "per_device_train_batch_size": 64}
        if len(rows) <= FEW:
            recipe = {"num_train_epochs": 15, "learning_rate": 1e-4, "per_device_train_batch_size": 32}
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(
                folder, **recipe, weight_decay=0.01, warmup_steps=0.06, train_sampling_strategy="group_by_length",
                bf16=self.model.device.type == "cuda", use_cpu=self.model.device.type == "cpu", seed=seed,
                save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
            )  # fmt: skip
            Trainer(self.model, settings, DataCollatorWithPadding(self.tokenizer), examples).train()
        self.model.eval()
        return self

    @torch.inference_mode()
    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """Class numbers of raw texts."""
        labels = np.empty(len(texts), np.int64)
        order = np.argsort([len(text) for text in texts], kind="stable")
        for some in np.array_split(order, -(-len(texts) // 64)):
            batch = self.tokenizer([texts[i] for i in some], truncation=True, max_length=MAX_TOKENS, padding=True,
                                   return_tensors="pt")  # fmt: skip
            labels[some] = self.model(**batch.to(self.model.device)).logits.argmax(1).cpu().numpy()
        return labels

    def nbytes(self) -> int:
        """Bytes of the folder that transformers writes."""
        with quiet(), tempfile.TemporaryDirectory() as out:
            self.model.save_pretrained(out)
            self.tokenizer.save_pretrained(out)
            return library.folder_bytes(Path(out))
