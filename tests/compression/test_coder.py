"""The coder: bytes within the budget, use decides who is kept well, a metric moves the error where it costs less."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from ade.compression.coder import SourceTable, assign, encode_table, encode_tables, plans_of
from ade.errors import InputError

ROWS, DIM = 1500, 48


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    spread = torch.linspace(2, 0.2, DIM)  # some directions matter more
    mixed = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator)).Q
    return torch.randn(ROWS, DIM, generator=generator) * spread @ mixed + 0.5


def error(table: torch.Tensor, use: torch.Tensor, size: int, **given: object) -> torch.Tensor:
    packed = encode_table(table, use, [0, 7], size, **given)  # type: ignore[arg-type]
    return (packed(torch.arange(len(table))) - table).square().sum(1)


def test_the_size_is_kept_and_more_bytes_err_less(table: torch.Tensor) -> None:
    use = 1 / torch.arange(1, ROWS + 1)
    errors = []
    for size in (25_000, 40_000, 70_000):
        packed = encode_table(table, use, [0, 7], size)
        stored = sum(array.numel() * array.element_size() for array in packed.state_dict().values())
        assert stored == packed.shape.nbytes <= size
        assert stored > size / 2  # and spent, but for books that would not pay
        errors.append(float((packed(torch.arange(ROWS)) - table).square().sum()))
    assert errors[0] > errors[1] > errors[2]
    with pytest.raises(InputError, match="too few for a table of 1,500 x 48"):
        encode_table(table, torch.ones(ROWS), [], 1000)


def test_special_rows_stay_exact(table: torch.Tensor) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        narrow = table.to(dtype)
        packed = encode_table(narrow, torch.ones(ROWS), [0, 7, 1499], 40_000)
        assert torch.equal(packed(torch.tensor([0, 7, 1499])), narrow[[0, 7, 1499]].float())


def test_rows_in_use_are_kept_better(table: torch.Tensor) -> None:
    use = torch.ones(ROWS)
    use[500:600] = 1000
    errors = error(table, use, 40_000)
    assert errors[500:600].mean() < errors[600:].mean() / 4


def test_a_metric_moves_the_error_to_directions_that_matter_less(table: torch.Tensor) -> None:
    metric = torch.zeros(DIM, DIM)
    metric[3, 3] = 1.0
    use = torch.ones(ROWS)
    plain, moved = (encode_table(table, use, [], 40_000, given)(torch.arange(ROWS)) - table for given in (None, metric))
    assert moved[:, 3].square().mean() < plain[:, 3].square().mean() / 2


def test_tables_share_a_size_at_one_price_a_byte(table: torch.Tensor) -> None:
    use, other = 1 / torch.arange(1, ROWS + 1), 0.1 * table[:700, :16]
    costs = {}
    for importance in (0.01, 1.0, 1000.0):
        sources = [SourceTable(table, use), SourceTable(other, use[:700], importance=importance)]
        first, second = encode_tables(sources, 50_000)
        assert 49_000 < first.shape.nbytes + second.shape.nbytes <= 50_000
        costs[importance] = second.shape.nbytes
    assert costs[0.01] < costs[1.0] < costs[1000.0]

    with pytest.raises(InputError, match="too few for a table of 1,500 x 48 and 700 x 16"):
        encode_tables(sources, 3000)


def test_the_same_seed_gives_the_same_bytes_also_memory_mapped(
    table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = torch.rand(ROWS, generator=torch.Generator().manual_seed(1))
    first = encode_table(table, use, [3], 40_000).state_dict()
    monkeypatch.setattr("ade.data.texts.IN_MEMORY", 1000)
    again = encode_table(table, use, [3], 40_000).state_dict()
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


@given(st.integers(1, 900), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_assign_finds_the_nearest_entry(count: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pieces, book = torch.randn(count, width, generator=generator), torch.randn(256, width, generator=generator)
    nearest = assign(pieces, book)
    distances = torch.cdist(pieces.double(), book.double())
    assert torch.allclose(distances.gather(1, nearest[:, None])[:, 0], distances.amin(1), atol=1e-5)


@pytest.mark.parametrize("dim", [32, 48, 100, 300, 384, 576, 640, 768, 2048])
def test_widths_divide_the_dimension_and_fall(dim: int) -> None:
    (coarse, shared), (many,) = plans_of(dim, 10_000), plans_of(dim, 10**9)
    for plan in (coarse, shared, many):
        widths = [stage.width for stage in plan]
        assert all(dim % width == 0 for width in widths)
        assert sorted(widths, reverse=True) == widths
    assert len(coarse) < len(shared) == len(many)  # books of many stages would take most of a small table
    assert not any(stage.shared for stage in many if stage.width >= 8)
    assert all(stage.shared for stage in shared)


def test_pieces_share_a_book_where_books_would_take_too_much(
    table: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = torch.ones(ROWS)
    chosen, plans = encode_table(table, use, [], 35_000), plans_of(DIM, 35_000)
    errors = []
    for plan in plans:
        monkeypatch.setattr("ade.compression.coder.plans_of", lambda dim, size, plan=plan: [plan])
        packed = encode_table(table, use, [], 35_000)
        assert packed.shape.stages[0].shared == plan[0].shared
        errors.append(float((packed(torch.arange(ROWS)) - table).square().sum()))
        if packed.shape.stages[0].shared == chosen.shape.stages[0].shared:
            best = errors[-1]
    assert best == min(errors) < 0.8 * max(errors)
