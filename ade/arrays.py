"""Helpers for code that works on numpy arrays and torch tensors alike: the light runtime has only numpy."""

from typing import Any

import numpy as np

Array = Any  # a numpy array or a tensor


def library_of(array: Array) -> Any:
    """The module the array belongs to: `numpy` or `torch`."""
    if isinstance(array, np.ndarray):
        return np
    import torch

    return torch


def arange_like(count: int, like: Array) -> Array:
    """The integers from 0 to `count - 1`, of the same library and on the same device as another array."""
    library = library_of(like)
    return np.arange(count) if library is np else library.arange(count, device=like.device)


def as_float(array: Array) -> Array:
    """The array as float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()
