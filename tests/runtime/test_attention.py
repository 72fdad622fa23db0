"""Attention is the softmax of the products, however large."""

import numpy as np
from hypothesis import given, strategies as st

from ade.plain import softmax
from ade.runtime import attention
from ade.runtime.attention import attend

Drawn = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def drawn(lengths: list[int], heads: int = 2, width: int = 4, value: int = 3, scale: float = 1.0) -> Drawn:
    """Queries, keys and values of texts, padded, and which of their elements are real."""
    draw, shape = np.random.default_rng(0), (len(lengths), max(lengths), heads)
    query, key = (scale * draw.standard_normal((*shape, width)) for _ in range(2))
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    query, key = (np.where(real[:, :, None, None], each, 99) for each in (query, key))  # padding that must not count
    values = draw.standard_normal((*shape, value))
    return query.astype(np.float32), key.astype(np.float32), values.astype(np.float32), real


def check(query: np.ndarray, key: np.ndarray, value: np.ndarray, real: np.ndarray, most: float = 1e-5) -> None:
    found = attend(query, key, value, real)
    assert found.shape == value.shape
    for text, length in enumerate(real.sum(1)):
        for head in range(query.shape[2]):
            q, k, v = (each[text, :length, head].astype(np.float64) for each in (query, key, value))
            np.testing.assert_allclose(found[text, :length, head], softmax(q @ k.T) @ v, rtol=1e-3, atol=most)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    heads=st.integers(1, 3),
    scale=st.sampled_from([0.1, 1.0, 5.0, 30.0]),
)
def test_it_is_the_softmax_of_the_products(lengths, heads, scale):
    check(*drawn(lengths, heads, scale=scale), most=1e-5 if scale <= 1 else 1e-3)


def test_rows_whose_scores_are_all_far_below_0_or_far_above():
    query, key, value, real = drawn([5, 3])
    key[:], query[:] = np.abs(key), np.abs(query)
    for factor in (-40, 40):  # products of about -300 and 300: bare exponentials vanish or overflow
        check(factor * query, key, value, real, 1e-3)
    mixed = query.copy()
    mixed[:, ::2] *= -40
    check(mixed, key, value, real, 1e-3)


def test_long_texts_are_attended_to_in_parts(monkeypatch):
    given_arrays = drawn([9, 30, 2])
    known = attend(*given_arrays)
    for most in (3 * 2 * 30 * 4, 1):
        monkeypatch.setattr(attention, "MAX_ATTENTION_SCORES", most)
        np.testing.assert_allclose(attend(*given_arrays), known, atol=1e-5)
