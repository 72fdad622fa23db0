"""Attention with numpy alone: softmax of queries and keys, and the sum of values, for texts of one padded length."""

import numpy as np

MAX_SAFE_SCORE = 60.0  # attention scores up to here need no shift before the exponential
MIN_SAFE_SUM = 1e-25  # nor do rows whose exponentials sum to more than this
MAX_ATTENTION_SCORES = 1 << 23  # attention scores in memory at a time


def attend(query: np.ndarray, key: np.ndarray, value: np.ndarray, real: np.ndarray) -> np.ndarray:
    """What attention gives each element, per head: (n, T, H, value).

    Queries and keys are (n, T, H, d / H), the scale of the scores included; values (n, T, H, value); `real` (n, T) is
    false for padding.
    """
    count, length, heads, width = value.shape
    query = query.transpose(0, 2, 1, 3)  # (n, H, T, d / H)
    key = key.transpose(0, 2, 3, 1)  # (n, H, d / H, T)
    if not real.all():
        value = value * real[:, :, None, None]

    # Long texts have many attention scores, so a part of the queries at a time.
    output = np.empty((count, length, heads, width), dtype=np.float32)
    step = max(1, MAX_ATTENTION_SCORES // (count * heads * length))
    for start in range(0, length, step):
        part = slice(start, start + step)
        weight, total = _attention_weights(query[:, :, part], key, real)
        target = output[:, part]
        np.matmul(weight, value.transpose(0, 2, 1, 3), out=target.transpose(0, 2, 1, 3))
        target /= total.transpose(0, 2, 1, 3)
    return output


def _attention_weights(query: np.ndarray, key: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention weights (n, H, Q, T) before they are normalised, and their sums over the real keys (n, H, Q, 1).

    The largest score is subtracted before the exponential only where it has to be, which is rare.
    """
    scores = query @ key
    if not scores.max() < MAX_SAFE_SCORE:
        _shift(scores, real)
    weight = np.exp(scores, out=scores)
    ones = real[:, None, :, None].astype(np.float32)
    total = weight @ ones
    if not total.min() > MIN_SAFE_SUM:  # every score of some row is far below 0
        scores = query @ key
        _shift(scores, real)
        weight = np.exp(scores, out=scores)
        total = weight @ ones
    return weight, total


def _shift(scores: np.ndarray, real: np.ndarray) -> None:
    """Subtract the largest real score of every row, in place: the softmax is the same, the exponential is safe."""
    scores -= np.where(real[:, None, None, :], scores, -np.inf).max(3, keepdims=True)
    np.minimum(scores, 0, out=scores)  # scores of padding may be larger
