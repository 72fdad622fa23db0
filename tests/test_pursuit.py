"""Matching pursuit against the textbook, row by row; the update of the anchors against its closed form."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ade import pursuit
from ade.codebook import Codebook
from ade.pursuit import Rows, pursue, pursue_all, quality, update_anchors
from ade.settings import DistillationSettings

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(drawn(*shape, seed=seed), dim=1)


def slow_pursuit(row: Tensor, anchors: Tensor, pairs: int, signed: bool) -> tuple[list[int], Tensor, list[float]]:
    """Orthogonal matching pursuit of one row by the book, in float64."""
    row, anchors = row.double(), anchors.double()
    chosen, residual, cosines = [], row, []
    for _ in range(pairs):
        scores = anchors @ residual
        scores = scores.abs() if signed else scores
        scores[chosen] = -torch.inf
        chosen.append(int(scores.argmax()))
        weights = torch.linalg.lstsq(anchors[chosen].T, row.unsqueeze(1)).solution[:, 0]
        weights = weights if signed else weights.clamp(min=0)
        residual = row - weights @ anchors[chosen]
        cosines.append(float(F.cosine_similarity(weights @ anchors[chosen], row, dim=0)))
    return chosen, weights, cosines


@pytest.mark.parametrize("signed", [True, False])
def test_pursuit_is_orthogonal_matching_pursuit(signed):
    anchors, rows, path = unit(30, 12, seed=4), unit(50, 12, seed=5), []
    indices, weights, cosine = pursue(rows @ anchors.T, anchors @ anchors.T, 5, signed, path)
    exact = 0
    for i, row in enumerate(rows):
        chosen, expected, cosines = slow_pursuit(row, anchors, 5, signed)
        assert indices[i, 0] == chosen[0]
        if indices[i].tolist() != chosen:  # two anchors were about equally good
            continue
        exact += 1
        torch.testing.assert_close(weights[i].double(), expected, rtol=1e-2, atol=1e-2)
        assert float(cosine[i]) == pytest.approx(cosines[-1], abs=1e-3)
        if signed:  # then a least-squares fit is orthogonal to its residual
            assert torch.stack(path)[:, i].tolist() == pytest.approx(cosines, abs=1e-3)
    assert exact >= 48
    assert len(path) == 5


def test_the_update_is_weighted_least_squares():
    """With a ridge that pulls each anchor a little to where it was."""
    rows = Rows(2 * drawn(80, 16), torch.rand(80, generator=torch.Generator().manual_seed(2)), CPU)
    anchors = unit(9, 16, seed=3)
    indices, weights, cosine = pursue_all(rows, anchors, DistillationSettings(anchors=9, pairs=3))
    cosine[:5] = 0.05  # so badly fitted that the weight is capped
    made = update_anchors(rows, anchors, indices, weights, cosine)

    transform = torch.zeros(80, 9, dtype=torch.float64).scatter_add(1, indices, weights.double())
    importance = rows.importance.double() / cosine.double().clamp(min=0.1)
    square = transform.T @ (importance.unsqueeze(1) * transform)
    ridge = 1e-3 * square.diagonal().diag()
    target = transform.T @ (importance.unsqueeze(1) * rows.take(torch.arange(80)).double()) + ridge @ anchors.double()
    expected = F.normalize(torch.linalg.solve(square + ridge, target), dim=1)
    torch.testing.assert_close(made.double(), expected, rtol=1e-3, atol=1e-4)


def test_an_anchor_nobody_uses_restarts_at_the_row_of_lowest_cosine_and_a_faint_one_does_not():
    rows, anchors = Rows(drawn(60, 8), torch.ones(60), CPU), unit(6, 8, seed=1)
    indices, weights = (torch.arange(60) % 3).unsqueeze(1), torch.ones(60, 1)
    indices[7], weights[7] = 3, 0.5  # once, and with a small weight; the last two anchors are never used
    cosine = torch.linspace(0.5, 0.9, 60).roll(20)
    made = update_anchors(rows, anchors, indices, weights, cosine)
    torch.testing.assert_close(made[4:], rows.take(torch.tensor([20, 21])))
    assert float(made[3] @ rows.take(torch.tensor([7]))[0]) > 0.99


def test_quality_is_of_the_composed_rows_to_the_teachers():
    book = Codebook(unit(5, 8).numpy(), [0, 1, 2, 2, 3] * 2000, drawn(10_000).numpy(), [1, 2, 2] * 2000)
    assert book.vocabulary == 6000  # more than a block
    book.weights[book.indices == 3] = 0
    table = 3 * drawn(6000, 8, seed=2)
    found = quality(Rows(table, torch.ones(6000), CPU), book)
    composed = torch.cat([torch.from_numpy(block) for block in book.blocks()])
    cosine = F.cosine_similarity(composed, table)
    expected = {
        "cosine": cosine.mean(),
        "cosine_p5": cosine.quantile(0.05),
        "cosine_p95": cosine.quantile(0.95),
        "dead_anchors": 2,  # the fourth has no weight, the last no pair
    }
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-5)


def test_rounds_of_pursuit_and_update_fit_the_rows_better_than_centres_do():
    planted = torch.einsum("nk,nkd->nd", drawn(2000, 2, seed=1).sign(), unit(6, 16)[torch.randint(6, (2000, 2))])
    rows, seen, cosines = Rows(planted, torch.ones(2000), CPU), [], []
    for rounds in (1, 6):  # of 2,000 rows a sample of 256 an anchor
        settings = DistillationSettings(anchors=6, pairs=2, rounds=rounds)
        generator = torch.Generator().manual_seed(0)
        anchors = pursuit.fit_anchors(rows, settings, generator, lambda *said: seen.append(said))
        cosines.append(float(pursue_all(rows, anchors, settings)[2].mean()))
    assert cosines[1] > cosines[0] + 0.02
    told = [said for said in seen if said[0] == "pursuit"]
    assert [said[1:3] for said in told] == [(0, 2), *((done, 7) for done in range(6))]
    assert told[-1][3]["cosine"] == pytest.approx(cosines[1], abs=0.02)
