"""How far a measured accuracy can be trusted: what it was measured on, and an interval around it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

QUANTILE = 1.6449  # of the normal distribution: intervals cover 90%


def interval(share: float, rows: int) -> tuple[float, float]:
    """Return the interval of a fraction of `rows` rows (Wilson's): the true fraction is within it in 9 of 10 cases."""
    if rows == 0:
        return 0.0, 1.0
    square = QUANTILE**2
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = QUANTILE * np.sqrt(share * (1 - share) / rows + square / (4 * rows**2)) / (1 + square / rows)
    return max(0.0, float(centre - half)), min(1.0, float(centre + half))


def estimate(metrics: Mapping[str, Any], metric: str, rows: int, folds: int = 1) -> dict[str, Any]:
    """Return what a metric is expected to be on new rows, on how many rows that was measured, and how."""
    how = f"{folds}-fold cross-validation" if folds > 1 else "rows left out of training"
    known = {"metric": metric, "value": metrics[metric], "rows": rows, "how": how}
    if metric != "accuracy":
        return known
    low, high = interval(metrics[metric], rows)
    return {**known, "low": low, "high": high}
