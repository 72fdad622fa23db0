"""A two-dimensional map of the anchors: similar anchors lie close together.

t-SNE where scikit-learn is installed, the first two principal components where it is not.
"""

import numpy as np
from threadpoolctl import threadpool_limits

MIN_TSNE, MAX_TSNE = 4, 1000  # vectors: t-SNE takes about two seconds for 1,000, and a quarter of a minute for 4,000
PERPLEXITY = 10.0
ITERATIONS = 500


def map_vectors(vectors: np.ndarray) -> np.ndarray:
    """Map vectors (K, d) to distinct points (K, 2) in the unit square by cosine similarity; deterministic.

    Of more than MAX_TSNE vectors the first are mapped by t-SNE; each other one lies around the most similar of them.
    """
    wide = np.asarray(vectors, np.float32)
    unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    if len(unit) < 2:
        return np.full((len(unit), 2), 0.5)

    noise = np.random.default_rng(0).standard_normal((len(unit), 2))  # so that equal vectors do not coincide
    points = _principal_components(unit) + 0.01 * noise
    if len(unit) >= MIN_TSNE and (mapped := _tsne(unit[:MAX_TSNE], points[:MAX_TSNE])) is not None:
        others = unit[MAX_TSNE:]
        nearest = np.concatenate([np.arange(len(mapped)), (others @ unit[:MAX_TSNE].T).argmax(1)])
        points = mapped[nearest] + 0.01 * mapped.std() * noise
    low = points.min(0)
    return (points - low) / np.maximum(points.max(0) - low, 1e-9)


def _principal_components(unit: np.ndarray) -> np.ndarray:
    """Return the first two principal components (K, 2), of standard deviation one."""
    centred = unit.astype(np.float64) - unit.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]

    # An eigenvector's sign is arbitrary: make its largest entry positive.
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])
    points = np.zeros((len(unit), 2))
    points[:, : axes.shape[1]] = centred @ axes
    return points / max(points.std(), 1e-6)


def _tsne(unit: np.ndarray, initial: np.ndarray) -> np.ndarray | None:
    """Return t-SNE from the given points; None without scikit-learn."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return None

    tsne = TSNE(
        perplexity=min(PERPLEXITY, 0.7 * (len(unit) - 1)),
        init=(1e-4 * initial).astype(np.float32),  # as small as scikit-learn's own initialisation
        max_iter=ITERATIONS,
        random_state=0,
    )
    with threadpool_limits(1):  # sums over several threads differ from run to run
        return tsne.fit_transform(unit).astype(np.float64)
