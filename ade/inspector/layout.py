"""A two-dimensional map of the anchors: similar anchors lie close together.

t-SNE where scikit-learn is installed, the first two principal components where it is not.
"""

import numpy as np
from threadpoolctl import threadpool_limits

MAX_TSNE = 4000  # vectors: t-SNE takes a second or two for 500 and would take half a minute for 10,000
MIN_TSNE = 4
PERPLEXITY = 10.0
ITERATIONS = 500
MIN_DISTANCE = 0.4  # between two points, as a fraction of their distance on a square grid
SEPARATION_ROUNDS = 20


def map_vectors(vectors: np.ndarray) -> np.ndarray:
    """Map vectors (K, d) to distinct points (K, 2) in the unit square by cosine similarity; deterministic."""
    wide = np.asarray(vectors, np.float32)
    unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    if len(unit) < 2:
        return np.full((len(unit), 2), 0.5)

    points = _principal_components(unit)
    if len(unit) > MAX_TSNE:
        return _to_unit_square(points)
    if len(unit) >= MIN_TSNE:
        points = _tsne(unit, points)
    return _to_unit_square(_separate(_to_unit_square(points)))


def _principal_components(unit: np.ndarray) -> np.ndarray:
    """The first two principal components (K, 2), with a little noise so that equal vectors do not coincide."""
    centred = unit.astype(np.float64) - unit.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]

    # An eigenvector's sign is arbitrary: make its largest entry positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    points = np.zeros((len(unit), 2))
    points[:, : axes.shape[1]] = centred @ axes
    points /= max(points.std(), 1e-6)
    return points + 0.01 * np.random.default_rng(0).standard_normal(points.shape)


def _tsne(unit: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """t-SNE from the given points; without scikit-learn, those points as they are."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return initial

    tsne = TSNE(
        perplexity=min(PERPLEXITY, 0.7 * (len(unit) - 1)),
        init=(1e-4 * initial).astype(np.float32),  # as small as scikit-learn's own initialisation
        max_iter=ITERATIONS,
        random_state=0,
    )
    with threadpool_limits(1):  # sums over several threads differ from run to run
        return tsne.fit_transform(unit).astype(np.float64)


def _separate(points: np.ndarray) -> np.ndarray:
    """Push points apart that lie nearly on top of each other, so that each can be pointed at."""
    wanted = MIN_DISTANCE / len(points) ** 0.5
    points = points + 0.01 * wanted * np.random.default_rng(0).standard_normal(points.shape)  # none coincide any more
    for _ in range(SEPARATION_ROUNDS):
        square = np.square(points).sum(1)
        distance = square[:, None] + square - 2 * points @ points.T  # (K, K), squared
        one, two = np.nonzero(np.triu(distance < wanted**2, 1))
        if not len(one):
            break
        difference = points[one] - points[two]
        length = np.maximum(np.linalg.norm(difference, axis=1), 1e-9)
        step = difference * (0.5 * np.maximum(wanted - length, 0) / length)[:, None]
        np.add.at(points, one, step)
        np.subtract.at(points, two, step)
    return points


def _to_unit_square(points: np.ndarray) -> np.ndarray:
    """Scale both coordinates to [0, 1]."""
    low = points.min(0)
    return (points - low) / np.maximum(points.max(0) - low, 1e-9)
