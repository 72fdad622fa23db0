"""What tables cannot hold, for padded batches: the softmax of attention, and the layers after SAT.

In the comments, n is a number of texts, T their tokens and H the heads.
"""

from collections.abc import Mapping

import numpy as np

from ade.plain import layer_norm, linear

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
    ones = real[:, None, :, None].astype(np.float32)
    scores = query @ key
    if scores.max() < MAX_SAFE_SCORE:
        weight = np.exp(scores, out=scores)
        total = weight @ ones
        if total.min() > MIN_SAFE_SUM:  # else every score of some row is far below 0
            return weight, total
        scores = query @ key
    scores -= np.where(real[:, None, None, :], scores, -np.inf).max(3, keepdims=True)
    weight = np.exp(np.minimum(scores, 0, out=scores), out=scores)  # scores of padding may be larger
    return weight, weight @ ones


def further_layer(
    x: np.ndarray, real: np.ndarray, name: str, layers: Mapping[str, np.ndarray], heads: int
) -> np.ndarray:
    """Return the output (n, T, d) of a layer after SAT for vectors (n, T, d), of which `real` (n, T) are no padding."""
    count, length, dim = x.shape
    projected = linear(layer_norm(x, f"{name}attention_norm", layers), f"{name}sat.projection", layers)
    split = projected.reshape(count, length, 3, heads, dim // heads)
    query, key, value = split.transpose(2, 0, 1, 3, 4)  # each (n, T, H, d / H)
    mixed = attend(query * np.float32((dim // heads) ** -0.5), key, value, real)
    x = x + linear(mixed.reshape(count, length, dim), f"{name}sat.output", layers)
    inner = linear(layer_norm(x, f"{name}norm", layers), f"{name}inner", layers)  # (n, T, 4 d)
    return x + linear(np.maximum(inner, 0), f"{name}outer", layers)
