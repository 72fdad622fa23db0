"""Codes found together, beside trying every sum of entries."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ade.compression.coder import assign, fit_books
from ade.compression.joint_codes import BEAM, refit, search, search_nested

WIDTH = 4


def drawn(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def best_sums(pieces: torch.Tensor, books: torch.Tensor) -> torch.Tensor:
    """The least squared error of any sum of one entry of each book, by trying them all."""
    sums = torch.stack(
        [
            sum(book[n] for book, n in zip(books, chosen, strict=True))
            for chosen in product(range(books.shape[1]), repeat=len(books))
        ]
    )
    return torch.cdist(pieces.double(), sums.double()).amin(1).square()


def summed(books: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    return sum(book[code.long()] for book, code in zip(books, codes, strict=True))


def test_one_book_gives_the_nearest_entry():
    pieces, books = drawn(5000, WIDTH), drawn(1, 256, WIDTH, seed=1)
    codes, left = search(pieces, books)
    assert torch.equal(codes[0].long(), assign(pieces, books[0]))
    assert torch.allclose(left, pieces - books[0][codes[0].long()])


def test_two_books_that_the_beam_holds_whole_give_the_best_sum():
    pieces, books = drawn(300, WIDTH), drawn(2, BEAM, WIDTH, seed=1)
    codes, left = search(pieces, books)
    assert torch.allclose(left.double().square().sum(1), best_sums(pieces, books), atol=1e-5)
    assert torch.allclose(left, pieces - summed(books, codes), atol=1e-5)


def test_more_books_come_nearer_than_one_after_the_other_and_near_to_the_best():
    pieces, books = drawn(400, WIDTH), drawn(3, 12, WIDTH, seed=1) * torch.tensor([1, 0.7, 0.5])[:, None, None]
    _, left = search(pieces, books)
    greedy = pieces.clone()
    for book in books:
        greedy -= book[assign(greedy, book)]
    found, best = left.square().sum(), best_sums(pieces, books).sum()
    assert best <= found + 1e-3
    assert found < 1.2 * best
    assert found < 0.95 * greedy.square().sum()


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(0, 40), min_size=1, max_size=4), seed=st.integers(0, 9))
def test_pieces_have_as_many_stages_as_is_said(counts: list[int], seed: int):
    counts = sorted(counts, reverse=True)
    pieces, books = drawn(counts[0], WIDTH, seed=seed), drawn(len(counts), 16, WIDTH, seed=seed + 1)
    codes, left = search_nested(pieces, books, counts)
    assert [len(code) for code in codes] == counts
    for row in range(counts[0]):
        depth = sum(row < count for count in counts)
        alone, rest = search(pieces[row : row + 1], books[:depth])
        assert [int(code[row]) for code in codes[:depth]] == alone[:, 0].tolist()
        assert torch.allclose(left[row], rest[0], atol=1e-5)


def test_books_fitted_anew_are_those_of_least_squares():
    counts = [600, 250]
    pieces, books, weights = drawn(600, WIDTH), drawn(2, 8, WIDTH, seed=1), drawn(600, seed=2).abs() + 0.1
    codes, before = search_nested(pieces, books, counts)
    found = refit(pieces, weights, codes, books)
    after = pieces - found[0][codes[0].long()]
    after[: counts[1]] -= found[1][codes[1].long()]
    assert (weights * after.square().sum(1)).sum() < 0.98 * (weights * before.square().sum(1)).sum()
    for stage, code in enumerate(codes):  # what is left does not depend on the entry, but for the damping
        slope = torch.zeros(8, WIDTH).index_add_(0, code.long(), (weights[:, None] * after)[: counts[stage]])
        moved = 0.1 * weights.mean() * (found[stage] - books[stage])
        assert torch.allclose(slope, moved, atol=2e-3)


def test_an_entry_that_no_piece_has_stays():
    pieces, books = drawn(50, WIDTH), drawn(2, 8, WIDTH, seed=1)
    codes = [torch.zeros(50, dtype=torch.uint8), torch.ones(50, dtype=torch.uint8)]
    found = refit(pieces, torch.ones(50), codes, books)
    assert torch.allclose(found[0, 1:], books[0, 1:], atol=1e-4)
    assert not torch.allclose(found[0, 0], books[0, 0], atol=1e-2)


@pytest.mark.parametrize("counts", [[3000], [3000, 1500], [3000, 3000, 10]])
def test_books_have_a_stage_each(counts: list[int]):
    pieces = drawn(3000, WIDTH)
    books = fit_books(pieces, torch.ones(3000), counts, seed=0)
    assert books.shape == (len(counts), 256, WIDTH)
    _, left = search_nested(pieces, books, counts)
    assert left.square().sum() < 0.2 * pieces.square().sum()
