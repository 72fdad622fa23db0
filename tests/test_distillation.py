import dataclasses

import pytest
import torch
from torch.nn import functional as F

from ade import distillation, pursuit
from ade.devices import resolve_device
from ade.distillation import count_tokens, distill
from ade.errors import InputError
from ade.pursuit import pursue
from ade.settings import DistillationSettings
from ade.teachers import Teacher
from tests.conftest import word_tokenizer


def planted(tokens=400, anchors=20, dim=16, pairs=3, seed=0):
    """A table that a codebook of this shape can express exactly."""
    generator = torch.Generator().manual_seed(seed)
    directions = F.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    chosen = torch.stack([torch.randperm(anchors, generator=generator)[:pairs] for _ in range(tokens)])
    weights = torch.randn(tokens, pairs, generator=generator).sign() * (
        0.5 + torch.rand(tokens, pairs, generator=generator)
    )
    table = torch.einsum("nk,nkd->nd", weights, directions[chosen])
    return Teacher("planted", table, word_tokenizer([f"w{i}" for i in range(tokens - 2)]))


def slow_pursuit(row, anchors, pairs):
    """Orthogonal matching pursuit of one row by the book, in float64."""
    row, anchors = row.double(), anchors.double()
    chosen, residual = [], row
    for _ in range(pairs):
        scores = (anchors @ residual).abs()
        scores[chosen] = -1
        chosen.append(int(scores.argmax()))
        weights = torch.linalg.lstsq(anchors[chosen].T, row.unsqueeze(1)).solution[:, 0]
        residual = row - weights @ anchors[chosen]
    return chosen, weights, float(F.cosine_similarity(row - residual, row, dim=0))


def test_pursuit_is_orthogonal_matching_pursuit():
    generator = torch.Generator().manual_seed(4)
    anchors = F.normalize(torch.randn(30, 12, generator=generator), dim=1)
    rows = F.normalize(torch.randn(50, 12, generator=generator), dim=1)
    indices, weights, cosine = pursue(rows @ anchors.T, anchors @ anchors.T, 5)
    for i, row in enumerate(rows):
        chosen, expected, reached = slow_pursuit(row, anchors, 5)
        assert indices[i].tolist() == chosen
        torch.testing.assert_close(weights[i].double(), expected, rtol=1e-2, atol=1e-2)
        assert float(cosine[i]) == pytest.approx(reached, abs=1e-3)


@pytest.mark.parametrize(("solver", "least"), [("pursuit", 0.93), ("gradient", 0.83)])
def test_both_solvers_recover_a_planted_codebook(solver, least):
    settings = DistillationSettings(anchors=20, pairs=3, solver=solver, rounds=30 if solver == "pursuit" else 300)
    book = distill(planted(), settings)
    cosine = F.cosine_similarity(book.rows(), planted().table, dim=1)
    assert float(cosine.mean()) > least
    assert book.about["cosine"] == pytest.approx(float(cosine.mean()), abs=1e-4)
    assert book.about["cosine_p5"] == pytest.approx(float(torch.quantile(cosine, 0.05)), abs=1e-3)
    assert book.about["dead_anchors"] == 0
    torch.testing.assert_close(book.anchors.norm(dim=1), torch.ones(20))


def test_more_rounds_and_more_anchors_fit_better():
    def cosine(**changes):
        return distill(planted(), dataclasses.replace(DistillationSettings(anchors=16, pairs=3), **changes)).about[
            "cosine"
        ]

    assert cosine(rounds=8) > cosine(rounds=1)
    assert cosine(anchors=40) > cosine(anchors=16) + 0.02
    assert cosine(pairs=5) > cosine(pairs=2) + 0.02


def test_the_same_seed_gives_the_same_codebook():
    first, second, other = (distill(planted(), DistillationSettings(anchors=16, pairs=3, seed=s)) for s in (1, 1, 2))
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.indices, second.indices)
    assert not torch.equal(first.anchors, other.anchors)


@pytest.mark.parametrize("threshold", [0.0, 0.4])
@pytest.mark.parametrize("solver", ["pursuit", "gradient"])
def test_no_anchor_is_left_unused_even_on_a_degenerate_table(solver, threshold):
    table = torch.randn(5, 8).repeat(40, 1) + 1e-3 * torch.randn(200, 8)  # five words, forty times each
    table[:20] = 0
    teacher = Teacher("copies", table, word_tokenizer([f"w{i}" for i in range(198)]))
    book = distill(teacher, DistillationSettings(anchors=40, pairs=2, solver=solver, threshold=threshold, rounds=4))
    assert torch.isfinite(book.anchors).all()
    assert torch.isfinite(book.weights).all()
    assert book.about["dead_anchors"] == 0
    assert len(book.indices.unique()) == 40


def test_threshold_gives_each_token_its_own_cardinality():
    book = distill(planted(), DistillationSettings(anchors=30, pairs=6, threshold=0.3))
    assert 1 <= int(book.counts.min()) < int(book.counts.max()) <= 6
    for token in range(0, 400, 37):
        weights = book.pairs_of(token)[1]
        assert len(weights) == 1 or float(weights.abs().min()) >= 0.3


@pytest.mark.parametrize("solver", ["pursuit", "gradient"])
def test_unsigned_weights(solver):
    settings = DistillationSettings(anchors=16, pairs=3, signed=False, solver=solver, rounds=4)
    book = distill(planted(), settings)
    assert float(book.weights.min()) >= 0
    assert book.about["cosine"] > 0.3


def test_a_row_of_zeros_does_no_harm():
    teacher = planted()
    table = teacher.table.clone()
    table[3] = 0
    book = distill(Teacher("zero", table, teacher.tokenizer), DistillationSettings(anchors=16, pairs=3))
    assert torch.isfinite(book.weights).all()
    assert int(book.counts[3]) == 1


def test_frequencies_favour_the_frequent():
    teacher = Teacher("noise", torch.randn(300, 16, generator=torch.Generator().manual_seed(0)), planted(300).tokenizer)
    frequencies = torch.zeros(300)
    frequencies[:30] = 1000
    settings = DistillationSettings(anchors=16, pairs=2)
    plain = F.cosine_similarity(distill(teacher, settings).rows(), teacher.table)[:30].mean()
    weighted = F.cosine_similarity(distill(teacher, settings, frequencies).rows(), teacher.table)[:30].mean()
    assert float(weighted) > float(plain) + 0.05


def test_frequencies_count_on_a_sampled_table_too():
    teacher = Teacher(
        "noise", torch.randn(3000, 16, generator=torch.Generator().manual_seed(0)), planted(300).tokenizer
    )
    frequencies = torch.zeros(3000)
    frequencies[:100] = 1000
    settings = DistillationSettings(anchors=8, pairs=2)  # 256 rows an anchor: a sample of 2,048
    plain = F.cosine_similarity(distill(teacher, settings).rows(), teacher.table)[:100].mean()
    weighted = F.cosine_similarity(distill(teacher, settings, frequencies).rows(), teacher.table)[:100].mean()
    assert float(weighted) > float(plain) + 0.03


def test_tokens_are_counted():
    tokenizer = word_tokenizer(["a", "b"])
    counts = count_tokens(tokenizer, ["a a b", "b zzz"] * 3000, 4)
    assert counts.tolist() == [0, 3000, 6000, 6000]


def test_sampled_rows_still_fit_the_whole_table():
    """More than 256 rows an anchor: anchors come from a sample, pairs are found for all."""
    book = distill(planted(tokens=4000, anchors=8, pairs=2), DistillationSettings(anchors=8, pairs=2))
    assert book.vocabulary == 4000
    assert book.about["cosine"] > 0.85


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"anchors": 401}, "401 anchors, but the teacher has only 400 tokens"),
        ({"anchors": 10, "pairs": 11}, "pairs must lie between 1 and the 10 anchors"),
        ({"anchors": 10, "pairs": 0}, "pairs must be at least 1"),
        ({"anchors": 10, "pairs": 2, "device": "tpu9"}, "unknown device"),
    ],
)
def test_impossible_settings(changes, message):
    with pytest.raises(InputError, match=message):
        distill(planted(), DistillationSettings(**changes))


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a GPU can refuse one")
def test_a_missing_gpu_is_said():
    with pytest.raises(InputError, match="no GPU"):
        resolve_device("cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_finds_the_same_quality():
    on = [
        distill(planted(), DistillationSettings(anchors=16, pairs=3, device=d)).about["cosine"] for d in ("cpu", "cuda")
    ]
    assert on[0] == pytest.approx(on[1], abs=0.01)


def test_anchors_are_fitted_alike_by_products_and_by_sums(teacher, monkeypatch):
    rows = pursuit.Rows(teacher.table, torch.rand(len(teacher.table)), torch.device("cpu"))
    anchors = torch.nn.functional.normalize(torch.randn(9, 16, generator=torch.Generator().manual_seed(3)), dim=1)
    found = pursuit.pursue_all(rows, anchors, DistillationSettings(anchors=9, pairs=3))
    dense = pursuit.update_anchors(rows, anchors, *found)
    monkeypatch.setattr(pursuit, "DENSE_ANCHORS", 1)
    assert torch.allclose(pursuit.update_anchors(rows, anchors, *found), dense, atol=1e-4)


def descended(start: torch.Tensor, indices: torch.Tensor | None = None) -> tuple[torch.Tensor, list[float], float]:
    """Weights after the paper's gradient descent from a start, the cosine on the way, how far the anchors went."""
    rows = pursuit.Rows(planted().table, torch.ones(400), torch.device("cpu"))
    generator, cosines = torch.Generator().manual_seed(0), []
    anchors, weights = rows.take(torch.arange(20)).requires_grad_(), start.clone().requires_grad_()
    before = anchors.detach().clone()

    def report(what, done, total, figures):
        cosines.append(figures["cosine"])

    settings = DistillationSettings(anchors=20, pairs=3, solver="gradient")
    distillation._descend(rows, anchors, weights, indices, settings, generator, 200, report)
    return weights.detach(), cosines, float((anchors.detach() - before).norm(dim=1).mean())


def test_gradient_descent_learns_the_anchors_and_the_transform():
    start = 0.1 * torch.randn(400, 20, generator=torch.Generator().manual_seed(1))
    weights, cosines, moved = descended(start)
    assert cosines[-1] > cosines[0] + 0.3
    assert float((weights - start).abs().mean()) > 0.02
    assert moved > 0.1
    weights, cosines, moved = descended(start[:, :3], torch.arange(3).repeat(400, 1))
    assert cosines[-1] > cosines[0] + 0.1
    assert float((weights - start[:, :3]).abs().mean()) > 0.02
    assert moved > 0.01


def test_the_l1_penalty_shrinks_the_dense_transform_alone():
    """The cosine does not care how large a row of weights is, so only the penalty makes rows smaller."""
    start = 5 * torch.randn(400, 20, generator=torch.Generator().manual_seed(1))
    size = start.abs().sum(1).mean()
    assert float(descended(start)[0].abs().sum(1).mean()) < 0.97 * size
    pairs = start[:, :3]
    kept = descended(pairs, torch.arange(3).repeat(400, 1))[0]
    assert float(kept.abs().sum(1).mean()) > 0.99 * pairs.abs().sum(1).mean()


def test_the_gradient_solver_without_signs_keeps_each_tokens_largest_positive_weights():
    settings = DistillationSettings(anchors=20, pairs=3, solver="gradient", signed=False, rounds=300)
    assert distill(planted(), settings).about["cosine"] > 0.81


def test_a_weight_exactly_at_the_threshold_is_kept():
    settings = DistillationSettings(anchors=20, pairs=3, rounds=2)
    sizes = distill(planted(), settings).weights.abs().sort().values
    limit = float(sizes[100])
    assert float(sizes[99]) < limit
    kept = distill(planted(), dataclasses.replace(settings, threshold=limit)).weights.abs()
    assert float(kept.min()) == limit


def test_a_revived_anchor_is_one_rows_own_with_all_its_weight_and_never_a_row_of_zeros():
    """Five words, forty times each, and an anchor in use for each: the others become rows that are served badly."""
    table = torch.randn(5, 8).repeat(40, 1) + 0.1 * torch.randn(200, 8)
    table[100:120] = 0
    rows = pursuit.Rows(table, torch.ones(200), torch.device("cpu"))
    anchors = F.normalize(torch.randn(12, 8), dim=1)
    anchors[:5] = rows.take(torch.arange(5))
    indices, weights = (torch.arange(200) % 5).unsqueeze(1).repeat(1, 2), torch.full((200, 2), 0.5)
    keep = torch.tensor([False, True]).repeat(200, 1)
    served = (anchors[indices[:, 1]] * rows.take(torch.arange(200))).sum(1)  # a row's cosine to its only anchor
    served[100:120] = torch.inf
    distillation._revive_unused(rows, anchors, indices, weights, keep)
    owners = ((indices >= 5) & keep).any(1).nonzero()[:, 0].tolist()
    assert owners == sorted(served.argsort()[:7].tolist())  # those served worst
    for anchor in range(5, 12):
        (owner,) = ((indices == anchor) & keep).any(1).nonzero()[:, 0].tolist()
        assert keep[owner].tolist() == [True, False]
        assert float(weights[owner, 0]) == 1.0
        torch.testing.assert_close(anchors[anchor], rows.take(torch.tensor([owner]))[0])
        assert not 100 <= owner < 120


def told(**settings: object) -> dict[str, list[tuple[int, int]]]:
    """How far each stage of a distillation said it was, in order."""
    found: dict[str, list[tuple[int, int]]] = {}

    def report(what, done, total, figures):
        found.setdefault(what, []).append((done, total))

    distill(planted(), DistillationSettings(**settings), report=report)
    return found


def test_progress_goes_up_to_its_end():
    found = told(anchors=16, pairs=3, rounds=4)
    assert list(found) == ["k-means", "pursuit"]
    assert found["pursuit"] == [(0, 5), (1, 5), (2, 5), (3, 5), (5, 5)]
    found = told(anchors=16, pairs=3, rounds=120, solver="gradient")
    assert list(found) == ["transform", "pairs"]
    for steps in found.values():
        assert steps == [(1, 120), (51, 120), (101, 120), (120, 120)]


def test_tokens_a_corpus_lacks_still_count_a_little():
    assert pursuit.importance_of(torch.tensor([0.0, 1.0, 2.0]), 3).tolist() == [0.5, 1.0, 1.5]
    assert pursuit.importance_of(None, 2).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="2 frequencies for 3 tokens"):
        pursuit.importance_of(torch.ones(2), 3)


def test_an_anchor_nobody_uses_starts_again_at_the_row_served_worst_and_a_faint_one_does_not():
    rows = pursuit.Rows(torch.randn(60, 8), torch.ones(60), torch.device("cpu"))
    anchors = F.normalize(torch.randn(5, 8), dim=1)
    indices = (torch.arange(60) % 3).unsqueeze(1)
    indices[7] = 3  # once, and with a small weight; the last anchor is never used
    weights = torch.ones(60, 1)
    weights[7] = 0.5
    cosine = torch.linspace(0.5, 0.9, 60).roll(20)
    made = pursuit.update_anchors(rows, anchors, indices, weights, cosine)
    torch.testing.assert_close(made[4], rows.take(torch.tensor([20]))[0])
    assert float(made[3] @ rows.take(torch.tensor([7]))[0]) > 0.99
    scaled = rows.take(torch.arange(60)) / cosine.unsqueeze(1)
    means = torch.stack([scaled[indices[:, 0] == i].sum(0) for i in range(3)])
    torch.testing.assert_close(F.cosine_similarity(made[:3], means), torch.ones(3), rtol=1e-3, atol=1e-3)


def test_the_gradient_solver_composes_rows_of_norm_one_on_a_table_larger_than_a_block():
    teacher = planted(tokens=5000, anchors=8, pairs=2)
    book = distill(teacher, DistillationSettings(anchors=8, pairs=2, solver="gradient", rounds=2))
    torch.testing.assert_close(book.rows().norm(dim=1), torch.ones(5000), rtol=1e-3, atol=1e-3)


def test_anchors_that_fit_exactly_stay_where_they_are():
    """Also where they share most of their rows: the ridge pulls towards where they were, not elsewhere."""
    anchors = F.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    indices = torch.stack([torch.arange(60) % 3 * 2, torch.arange(60) % 3 * 2 + 1], 1)
    weights = 1 + 0.1 * torch.randn(60, 2, generator=torch.Generator().manual_seed(1))
    table = torch.einsum("nk,nkd->nd", weights, anchors[indices])
    weights = weights / table.norm(dim=1, keepdim=True)
    rows = pursuit.Rows(table, torch.ones(60), torch.device("cpu"))
    made = pursuit.update_anchors(rows, anchors, indices, weights, torch.ones(60))
    torch.testing.assert_close(made, anchors, rtol=1e-3, atol=1e-3)
