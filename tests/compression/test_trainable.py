"""Tables whose books are trained: the same rows at first, and bytes again at the end."""

import torch

from ade.compression.trainable import TrainableTable
from ade.packing.coded import Stage, TableShape
from tests.compression.test_table import random_table

SHAPE = TableShape(40, 12, 3, (Stage(4, 37), Stage(2, 20, shared=True), Stage(3, 6)))
IDS = torch.arange(40)


def test_it_starts_with_the_rows_of_the_packed_table():
    packed = random_table(SHAPE)
    assert torch.allclose(TrainableTable.of(packed)(IDS), packed(IDS), rtol=1e-5, atol=1e-5)
    assert not TrainableTable.of(packed, rotation=False).rotation_values.requires_grad


def test_every_book_gets_gradients_and_they_are_those_of_the_rows():
    table = TrainableTable.of(random_table(SHAPE))
    wanted = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    (table(IDS) * wanted).sum().backward()
    for book in table.books:
        assert book.grad is not None
        assert (book.grad != 0).any()

    # The number that a small step of one entry changes the sum by.
    book, step = table.books[1], 1e-2
    at = tuple(int(i) for i in (book.grad.abs() == book.grad.abs().max()).nonzero()[0])
    with torch.no_grad():
        before = (table(IDS) * wanted).sum()
        book[at] += step
        after = (table(IDS) * wanted).sum()
    assert torch.isclose((after - before) / step, book.grad[at], rtol=0.02)


def test_packed_again_it_is_close_and_of_the_same_size():
    table = TrainableTable.of(random_table(SHAPE))
    with torch.no_grad():
        for book in table.books:
            book += 0.1 * torch.randn(book.shape, generator=torch.Generator().manual_seed(2))
    packed = table.packed()
    assert packed.shape == SHAPE
    error = (packed(IDS) - table(IDS)).square().mean().sqrt()
    assert error < 0.02 * table(IDS).square().mean().sqrt()
    packed.check_depths()
