"""A budget in bytes is kept, and spent where it buys most."""

import os

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from torch.nn import functional as F

from ade import budget
from ade.budget import distill_to_size, least_size
from ade.codebook import Codebook
from ade.errors import InputError
from ade.folder import Saved
from ade.settings import DistillationSettings
from ade.teachers import Teacher
from tests.conftest import word_tokenizer

ALL = np.arange(3000)
NONE = torch.tensor([], dtype=torch.int64)


@pytest.fixture(scope="module")
def large() -> Teacher:
    """Rows drawn around few centres; two special tokens."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = word_tokenizer([f"w{i}" for i in range(2998)])
    tokenizer.add_special_tokens([AddedToken("[PAD]", special=True), AddedToken("[UNK]", special=True)])
    centres = torch.randn(40, 48, generator=generator)
    table = centres[torch.randint(40, (3000,), generator=generator)] + torch.randn(3000, 48, generator=generator)
    return Teacher("large", 3 * table, tokenizer)


BY_RANK = 1 / (torch.arange(3000) + 100)  # Zipf's law


def to_size(teacher: Teacher, size: int, frequencies: torch.Tensor = BY_RANK) -> tuple[Codebook, Saved]:
    """A codebook whose file has this size, the tokenizer apart."""
    saved = distill_to_size(teacher, size, DistillationSettings(rounds=1), frequencies)
    assert isinstance(saved.table, Codebook)
    return saved.table, saved


def counts_of(book: Codebook) -> np.ndarray:
    """The number of pairs of each token; 0 for a row of its own."""
    return np.where(book.indices[book.starts] >= book.packing.shared, 0, book.counts)


@pytest.mark.parametrize("size", [60_000, 150_000])
def test_the_file_comes_out_just_under_the_budget_and_reads_back_as_it_was_measured(large, size, tmp_path):
    book, saved = to_size(large, size)
    saved.save(tmp_path / "codebook")
    assert 0.98 * size <= os.path.getsize(tmp_path / "codebook" / "model.safetensors") <= size
    again = Saved.read(tmp_path / "codebook")
    assert again.table.packing == book.packing
    assert np.array_equal(again.table.rows(ALL), book.rows(ALL))
    metadata = saved.config.metadata
    assert metadata["anchors"] == book.packing.shared == len(book.anchors) - metadata["own_8"] - metadata["own_4"]
    assert metadata["own_8"] == book.packing.fine
    assert metadata["pairs"] == pytest.approx(counts_of(book).mean())
    cosine = F.cosine_similarity(torch.from_numpy(book.rows(ALL)), large.table).mean()
    assert metadata["cosine"] == pytest.approx(float(cosine), abs=1e-4)


def test_more_bytes_bring_more_and_frequent_tokens_get_most(large):
    (small, saved), (_, wide) = (to_size(large, size) for size in (50_000, 100_000))
    assert wide.config.metadata["cosine"] > saved.config.metadata["cosine"] + 0.05
    assert small.counts[100:400].mean() > small.counts[-300:].mean() + 0.2
    frequencies = torch.ones(3000)
    frequencies[2000:2100] = 10_000
    asked, _ = to_size(large, 50_000, frequencies=frequencies)
    assert asked.counts[2000:2100].mean() > small.counts[2000:2100].mean() + 1


def test_special_tokens_have_rows_of_their_own_and_rows_keep_their_length(large):
    """Least squares: a row is as long as the part of it that is explained, up to the grid scales are stored on."""
    book, _ = to_size(large, 100_000)
    rows, own = book.rows(ALL), counts_of(book) == 0
    assert own[:2].all()
    np.testing.assert_allclose(rows[:2], large.table[:2], atol=0.02 * float(large.table[:2].abs().max()))
    ratio = np.linalg.norm(rows, axis=1) / large.table.norm(dim=1).numpy()
    cosine = F.cosine_similarity(torch.from_numpy(rows), large.table).numpy()
    assert (~own).sum() > 100
    assert np.abs(ratio - cosine).max() < 0.03
    assert np.abs(ratio - cosine)[book.counts > 1].max() < 0.005


def test_the_least_bytes_suffice_and_fewer_do_not(large):
    least = least_size(large)
    with pytest.raises(InputError, match="the budget is too small by"):
        to_size(large, least - 100)
    book, saved = to_size(large, least + 400)
    assert counts_of(book)[2:].mean() < 1.3
    assert saved.nbytes <= least + 400


def test_each_token_takes_what_is_worth_its_price():
    """Three choices of pairs, a row in 8 bits, one in 4; of two budgets the greedy best, by hand."""
    cosines = torch.tensor([[0.5, 0.9, 0.91, 0.2, 0.2], [0.5, 0.6, 0.62, 0.2, 0.2], [0.9, 0.91, 0.92, 0.2, 0.2]])

    def taken(available: float, special: torch.Tensor = NONE, weight: torch.Tensor | None = None) -> list[int]:
        weight = torch.ones(3) if weight is None else weight
        return (1 + budget._allocate(cosines, weight, special, available, 10, 16)).tolist()

    assert taken(30) == [1, 1, 1]
    assert taken(40) == [2, 1, 1]
    assert taken(50) == [2, 2, 1]
    assert taken(10_000) == [3, 3, 3]
    assert taken(40, weight=torch.tensor([1.0, 9, 1])) == [1, 2, 1]
    assert taken(8 * 16 + 16 + 20, torch.tensor([2])) == [1, 1, 4]
    with pytest.raises(InputError, match="the budget is too small by 3 bytes"):
        taken(1)


def test_each_weight_is_rounded_given_the_others_until_no_step_up_or_down_fits_better():
    generator = torch.Generator().manual_seed(0)
    anchors = F.normalize(torch.randn(300, 8, 16, generator=generator), dim=2)  # (n, k, d)
    rows = F.normalize(torch.randn(300, 16, generator=generator), dim=1)
    real = torch.arange(8) < torch.randint(4, 9, (300, 1), generator=generator)
    anchors = anchors * real.unsqueeze(2)  # as `_fit` gives padding
    small, target = anchors @ anchors.transpose(1, 2), (anchors @ rows.unsqueeze(2)).squeeze(2)
    weights, cosine = budget._rounded_fit(small, target, real)
    assert not weights[~real].any()
    step = weights.abs().amax(1, keepdim=True) / 7
    number = (weights / step).round()
    torch.testing.assert_close(number * step, weights, atol=1e-5, rtol=0)
    composed = torch.einsum("nk,nkd->nd", weights, anchors)
    torch.testing.assert_close(F.cosine_similarity(composed, rows), cosine, atol=1e-4, rtol=0)
    torch.testing.assert_close((composed * rows).sum(1), composed.square().sum(1), atol=1e-4, rtol=0)  # the best step
    error = (composed - rows).square().sum(1)
    best = torch.ones(300, dtype=torch.bool)
    for j in range(8):
        for change in (-1, 1):
            moved = number.clone()
            moved[:, j] += change
            other = (torch.einsum("nk,nkd->nd", moved * step, anchors) - rows).square().sum(1)
            best &= (moved.abs().amax(1) > 7) | (number[:, j].abs() == 7) | (other >= error - 1e-6)
    assert float(best.float().mean()) > 0.97
