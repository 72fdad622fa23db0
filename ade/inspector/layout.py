"""Vectors -> places on a plane, for a map of all anchors: neighbours stay neighbours (t-SNE, exact, in plain numpy).

Numpy, because steps this small are slower on several threads than on one.
"""

import numpy as np

MOST = 1000  # so many are laid out together; the rest is put between the nearest of them
NEIGHBOURS, PERPLEXITY = 30, 10.0  # how many pull at all, and how many count on average
STEPS, EARLY, PULL = 400, 100, 8.0  # in the early steps neighbours pull harder: groups find each other
APART = 0.4  # no two places are nearer than this part of the distance they would have on a grid


def flattened(vectors: np.ndarray) -> np.ndarray:
    """A place in the unit square for each of (K, d) vectors, by direction; the same vectors give the same places."""
    wide = np.asarray(vectors, np.float32)
    unit = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    first, rest = unit[:MOST], unit[MOST:]
    places = _settled(first) if len(first) > 2 else np.linspace(0, [1, 1], len(first))
    places = _fitted(_apart(_fitted(places.astype(np.float64))))
    if len(rest):
        places = np.concatenate([places, _between(rest, first, places)])
    return places if len(places) > 1 else np.full((len(places), 2), 0.5)


def _settled(unit: np.ndarray) -> np.ndarray:
    """Places (K, 2) where neighbours pull, everything pushes, and nothing moves much any more."""
    count = len(unit)
    one, two, pull = _neighbours(unit)
    places = _principal(unit)
    moved, gain = np.zeros_like(places), np.ones_like(places)
    rate = max(count / (4 * PULL), 10.0)
    near = np.empty((count, count), np.float32)
    for step in range(STEPS):
        early = step < EARLY
        size = np.square(places).sum(1)
        np.matmul(-2 * places, places.T, out=near)
        near += size[:, None]
        near += 1 + size
        np.maximum(near, 1, out=near)
        np.reciprocal(near, out=near)  # (K, K): 1 / (1 + distance^2)
        total = near.sum() - count
        np.square(near, out=near)
        push = (near.sum(1, keepdims=True) * places - near @ places) / total
        away = places[one] - places[two]  # (E, 2)
        force = away * (pull / (1 + np.square(away).sum(1)))[:, None]
        sums = np.stack([np.bincount(one, force[:, axis], count) for axis in (0, 1)], 1)
        slope = (4 * ((PULL if early else 1) * sums - push)).astype(np.float32)
        gain = np.maximum(np.where(slope * moved < 0, gain + 0.2, gain * 0.8), 0.01)
        moved = (0.5 if early else 0.8) * moved - rate * gain * slope
        places = places + moved
    return places


def _neighbours(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of neighbours, both ways, and how hard each pulls: Gaussians as wide as makes `PERPLEXITY` count."""
    count = len(unit)
    alike = unit @ unit.T
    np.fill_diagonal(alike, -np.inf)
    other = np.argsort(-alike, axis=1, kind="stable")[:, : min(NEIGHBOURS, count - 1)]  # (K, n)
    closest = np.take_along_axis(alike, other, 1).astype(np.float64)
    distance = 2 * (closest[:, :1] - closest)  # squared, beyond the closest one's
    wanted = np.log(min(PERPLEXITY, 0.7 * (count - 1)))
    low, high = np.full((count, 1), 1e-3), np.full((count, 1), 1e5)
    for _ in range(40):
        narrow = np.sqrt(low * high)
        chance = np.exp(-narrow * distance)
        chance /= chance.sum(1, keepdims=True)
        spread = -(chance * np.log(np.maximum(chance, 1e-12))).sum(1, keepdims=True)
        low, high = np.where(spread > wanted, narrow, low), np.where(spread > wanted, high, narrow)
    own = np.repeat(np.arange(count), other.shape[1])
    pull = chance.ravel() / (2 * count)
    return np.concatenate([own, other.ravel()]), np.concatenate([other.ravel(), own]), np.concatenate([pull, pull])


def _principal(unit: np.ndarray) -> np.ndarray:
    """The first two principal components, small, and a little apart where they coincide."""
    centred = unit.astype(np.float64) - unit.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # the decomposition leaves it open
    places = np.zeros((len(unit), 2))
    places[:, : axes.shape[1]] = centred @ axes
    places *= 0.01 / max(places.std(), 1e-6)
    return (places + 1e-4 * np.random.default_rng(0).standard_normal(places.shape)).astype(np.float32)


def _between(rest: np.ndarray, first: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The others: amid their three nearest, a little to one side."""
    parts = []
    for start in range(0, len(rest), 1024):
        alike = rest[start : start + 1024] @ first.T
        nearest = np.argsort(-alike, axis=1, kind="stable")[:, :3]
        share = np.exp(20 * np.take_along_axis(alike, nearest, 1))  # (n, 3)
        parts.append(((share / share.sum(1, keepdims=True))[:, :, None] * places[nearest]).sum(1))
    amid = np.concatenate(parts)
    return np.clip(amid + APART / len(first) ** 0.5 * np.random.default_rng(0).standard_normal(amid.shape), 0, 1)


def _apart(places: np.ndarray, rounds: int = 20) -> np.ndarray:
    """Places pushed away from those that lie all but on top of them, so that each can be pointed at."""
    wanted = APART / len(places) ** 0.5
    for _ in range(rounds):
        size = np.square(places).sum(1)
        square = size[:, None] + size - 2 * places @ places.T
        one, two = np.nonzero(np.triu(square < wanted**2, 1))
        if not len(one):
            break
        away = places[one] - places[two]
        length = np.maximum(np.sqrt(np.square(away).sum(1)), 1e-9)
        step = away * (0.5 * np.maximum(wanted - length, 0) / length)[:, None]
        for axis in (0, 1):
            places[:, axis] += np.bincount(one, step[:, axis], len(places))
            places[:, axis] -= np.bincount(two, step[:, axis], len(places))
    return places


def _fitted(places: np.ndarray) -> np.ndarray:
    """Stretched to the unit square."""
    low = places.min(0)
    return (places - low) / np.maximum(places.max(0) - low, 1e-9)
