"""Gains of coded rows: those that bring the distributions of scores nearest to the original table's."""

import torch
from torch.nn import functional as F

from ade.compression.coder import CoderSettings, encode_table
from ade.compression.lengthening import lengthen
from ade.packing.coded import TableShape
from tests.compression.test_table import random_table

ROWS, DIM = 1200, 32


def peaked_table() -> tuple[torch.Tensor, torch.Tensor]:
    """A table, and vectors that each point to one of its rows, so that this row is likely."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ROWS, DIM, generator=generator)
    return table, 0.25 * table[torch.randint(ROWS, (300,), generator=generator)]


def divergence(table, states, packed) -> float:
    wanted, found = (states @ table.T).log_softmax(1), packed.scores(states).log_softmax(1)
    return float(F.kl_div(found, wanted, log_target=True, reduction="batchmean"))


def test_scores_come_nearer_and_no_other_gain_is_better() -> None:
    table, states = peaked_table()
    use = 1 / torch.arange(1, ROWS + 1)
    packed = encode_table(table, use, [0], CoderSettings(22_000))
    assert torch.equal(packed.gains, torch.ones(len(packed.shape.stages)))
    before = divergence(table, states, packed)
    lengthen(packed, states, table)
    assert (packed.gains - 1).abs().max() > 0.05
    assert divergence(table, states, packed) < before

    found = packed.gains.clone()
    for number in range(len(found)):  # no other gain is better, a little more or less
        for change in (0.9, 1.1):
            packed.gains.copy_(found)
            packed.gains[number] *= change
            changed = divergence(table, states, packed)
            packed.gains.copy_(found)
            assert changed > divergence(table, states, packed) - 1e-3


def test_a_table_without_codes_or_vectors_stays_as_it_is() -> None:
    whole = random_table(TableShape(5, 8, 5, ()))
    lengthen(whole, torch.randn(3, 8), torch.randn(5, 8))
    table, _ = peaked_table()
    packed = encode_table(table, torch.ones(ROWS), [], CoderSettings(30_000))
    lengthen(packed, torch.empty(0, DIM), table)
    assert torch.equal(packed.gains, torch.ones(len(packed.shape.stages)))
