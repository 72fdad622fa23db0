"""The vectors that an encoder learns: a teacher's, mapped linearly to a space that a small encoder can follow.

Rotating changes no cosine and allows vectors to be truncated. Two other steps do change cosines, for the better. Where
most of every vector is the same, as in e5, that is taken off, as it tells no text from another. Where translations are
known, directions count less the more translations differ in them: language and style, rather than meaning (whitening by
the covariance within lines, as in linear discriminant analysis).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.data.spilling import SpilledArray
from ade.training.translations import Lines, differences, shared_vectors

ROWS = 65_536  # vectors mapped at a time
COMMON = 0.5  # of the squared length of unit vectors: where their mean has more, it is taken off them
RIDGE = 0.5  # of the mean variance within lines, added to every direction's
FEWEST = 1_000  # lines: with fewer the variances are not known well enough


def target_vectors(vectors: np.ndarray, lines: Lines, dim: int) -> np.ndarray:
    """Return what an encoder learns (n, dim), float16, from a teacher's unit vectors (n, D); `lines` mean the same."""
    scaling, shared = _scaling(vectors, lines), shared_vectors(vectors, lines)
    mean = _mean(shared)
    if mean.square().sum() <= COMMON:
        mean = torch.zeros_like(mean)
    if scaling is not None or mean.any():
        shared = _mapped(shared, mean, scaling)
    return rotated(shared, dim)


def rotated(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Rotate vectors (n, D) so that their first dimensions carry the most, and keep `dim`; (n, dim) float16."""
    moment = torch.zeros(vectors.shape[1], vectors.shape[1], dtype=torch.float64)
    for part in _parts(vectors):
        moment += part.T @ part
    basis = np.linalg.eigh(moment.numpy())[1][:, ::-1][:, :dim].astype(np.float32)  # of the largest eigenvalues first

    # Eigenvectors have no sign of their own; with one that does not depend on the library, runs are the same.
    basis *= np.where(basis[np.abs(basis).argmax(0), np.arange(dim)] < 0, -1, 1).astype(np.float32)
    turned = SpilledArray(np.float16)
    for part in _parts(vectors):
        turned.add((part @ torch.from_numpy(basis)).half().numpy().ravel())
    return turned.array().reshape(len(vectors), dim)


def _parts(vectors: np.ndarray) -> Iterator[Tensor]:
    """Yield the rows of vectors (n, D) in order, some at a time, in float32."""
    for start in range(0, len(vectors), ROWS):
        yield torch.from_numpy(np.array(vectors[start : start + ROWS])).float()  # casts faster than numpy


def _scaling(vectors: np.ndarray, lines: Lines) -> Tensor | None:
    """Return the map (D, D) after which translations differ about as much in every direction; None without lines."""
    if len(lines.offsets) <= FEWEST:
        return None
    apart = torch.from_numpy(differences(vectors, lines)).double()
    values, directions = torch.linalg.eigh(apart.T @ apart / len(apart))
    variances = values.clamp(min=0) + RIDGE * values.mean()
    if not variances.min() > 0:  # all translations have the same vectors
        return None
    return (directions / variances.sqrt() @ directions.T).float()


def _mean(vectors: np.ndarray) -> Tensor:
    """Return the mean (D,) of vectors (n, D)."""
    total = torch.zeros(vectors.shape[1])
    for part in _parts(vectors):
        total += part.sum(0)
    return total / max(1, len(vectors))


def _mapped(vectors: np.ndarray, mean: Tensor, scaling: Tensor | None) -> np.ndarray:
    """Return vectors (n, D) less the mean (D,), times the scaling (D, D), of length 1 again; float16."""
    found = SpilledArray(np.float16)
    for part in _parts(vectors):
        centred = part - mean
        scaled = centred if scaling is None else centred @ scaling
        found.add(F.normalize(scaled, dim=1).half().numpy().ravel())
    return found.array().reshape(vectors.shape)
