"""Vectors of texts by a transformer, and what they are worth on STS-B: for `compress.py` and `sentence.py`."""

import csv
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ade.compression.source import mean_states, padded
from ade.encoder import unit

Row = TypeVar("Row", str, list[int])  # a text, or its token ids
Encode = Callable[[Sequence[str]], np.ndarray]  # texts -> vectors (n, D)


@torch.inference_mode()
def unit_means(model: Any, rows: Sequence[list[int]], batch_size: int) -> np.ndarray:
    """Return the mean of the last hidden states of each text, of length 1: (n, d); `rows` are token ids."""
    device = next(model.parameters()).device

    def means(some: list[list[int]]) -> np.ndarray:
        return mean_states(model, *padded(some, device)).cpu().numpy()

    return unit(by_length(rows, batch_size, means))


def by_length(rows: Sequence[Row], batch_size: int, vectors_of: Callable[[list[Row]], np.ndarray]) -> np.ndarray:
    """Return the vectors of rows (n, d), made in batches of rows that are about as long."""
    order = np.argsort([len(row) for row in rows], kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    found = np.concatenate([vectors_of([rows[row] for row in some]) for some in batches])
    return found[np.argsort(order)]


def stsb(encode: Encode, folder: Path, language: str = "en", part: str = "test", rows: int = 0) -> float:
    """Return Spearman's correlation of cosines with the judgements of STS-B, of its first `rows` pairs or of all."""
    with open(folder / f"stsb-{language}-{part}.csv", encoding="utf8", newline="") as file:
        pairs = list(csv.reader(file))[: rows or None]
    first, second = (unit(encode([pair[side] for pair in pairs])) for side in (0, 1))
    spearmanr = import_module("scipy.stats").spearmanr
    return float(spearmanr((first * second).sum(1), [float(pair[2]) for pair in pairs]).statistic)
