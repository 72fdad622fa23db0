"""Tables in numpy: rows against the formula, number by number; what is stored is read back; what is refused."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from ade.codebook import Codebook, CodedTable, Stage, TableShape, codebook_of, read_table, rounded
from ade.errors import InputError
from tests.conftest import ragged_codebook
from tests.models import CODED, coded_table, packed_codebook, table_shapes

COUNTS = st.one_of(
    st.lists(st.integers(1, 12), min_size=2, max_size=30),
    st.integers(2, 30).map(lambda n: [1] * n),
    st.integers(1, 30).map(lambda n: [1] * n + [12]),
)
PARTS = ("anchors", "indices", "weights", "counts")


def book_of(counts: list[int], **more: int) -> Codebook:
    return ragged_codebook(counts, **more).table


@given(counts=COUNTS, seed=st.integers(0, 1000))
def test_rows_are_the_weighted_sums_of_a_tokens_own_anchors(counts, seed):
    book = book_of(counts, seed=seed)
    ids = np.random.default_rng(seed).integers(0, len(counts), 9)
    ends = np.cumsum(counts)
    for token, row in zip(ids, book.rows(ids), strict=True):
        own = slice(ends[token] - counts[token], ends[token])
        assert book.of(token)[0].tolist() == book.indices[own].tolist()
        assert book.of(token)[1].tolist() == book.weights[own].tolist()
        exact = sum(
            w * book.anchors[j].astype(float) for j, w in zip(book.indices[own], book.weights[own], strict=True)
        )
        np.testing.assert_allclose(row, exact, rtol=1e-4, atol=1e-5)
    assert book.rows(ids).dtype == np.float32
    assert (book.vocabulary, book.dim, book.max_pairs) == (len(counts), 8, max(counts))
    blocks = list(book.blocks(7))
    assert [len(block) for block in blocks[:-1]] == [7] * (len(blocks) - 1)
    np.testing.assert_allclose(np.concatenate(blocks), book.rows(np.arange(len(counts))), rtol=1e-5, atol=1e-6)


def test_normalised_rows_have_unit_variance_and_the_same_direction():
    book = book_of([1, 3, 2, 4, 1, 5])
    book = replace(book, weights=np.where(np.repeat(np.arange(6), book.counts) == 2, 0, 1.7 * book.weights))
    before, after = (each.rows(np.arange(6)) for each in (book, book.normalised()))
    norms = np.linalg.norm(before, axis=1, keepdims=True)
    np.testing.assert_allclose(after, before / np.maximum(norms, 1e-6) * 8**0.5, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(book.normalised().anchors, book.anchors * 8**0.5, rtol=1e-6)
    assert not after[2].any()  # a row of zeros stays one
    assert packed_codebook().normalised().packing == packed_codebook().packing


def test_indices_and_counts_take_few_bytes_while_these_hold_them_and_come_back():
    for anchors, most, kinds in (
        (2**15, 255, ("int16", "uint8")), (2**15 + 1, 255, ("int32", "uint8")), (300, 256, ("int16", "int32"))
    ):  # fmt: skip
        book = book_of([1, most], anchors=anchors, dim=2)
        book.indices[0] = anchors - 1
        sizes, arrays = book.stored()
        assert (sizes, arrays["indices"].dtype, arrays["counts"].dtype) == ({"kind": "pairs"}, *kinds)
        again = read_table(sizes, arrays)
        for name in PARTS:
            assert np.array_equal(getattr(again, name), getattr(book, name))
            assert getattr(again, name).dtype == getattr(book, name).dtype


def test_a_packed_codebook_is_rounded_once():
    book = packed_codebook()
    once = rounded(book)
    assert isinstance(once, Codebook)
    assert book.stored()[0]["kind"] == "packed"
    assert once.packing == book.packing
    assert 0 < np.abs(once.rows(np.arange(19)) - book.rows(np.arange(19))).max() < 0.3
    for name in PARTS:
        np.testing.assert_allclose(getattr(rounded(once), name), getattr(once, name), rtol=1e-6)
    assert np.array_equal(once.indices, book.indices)


def test_impossible_codebooks_are_refused():
    for change, says in (
        ({"counts": [0, 3, 3]}, "every token needs at least one pair"),
        ({"counts": []}, "every token needs at least one pair"),
        ({"counts": [2, 2, 3]}, "6 indices, 6 weights, the counts add up to 7"),
        ({"weights": [1.0] * 5}, "6 indices, 5 weights, the counts add up to 6"),
        ({"indices": [0, 1, 2, 3, 4, 12]}, "an index lies outside the 12 anchors"),
        ({"indices": [0, 1, 2, 3, 4, -1]}, "an index lies outside the 12 anchors"),
        ({"weights": [1.0, np.nan, 1, 1, 1, 1]}, "'weights' holds numbers that are not finite"),
        ({"anchors": np.full((12, 8), np.inf)}, "'anchors' holds numbers that are not finite"),
    ):
        with pytest.raises(InputError, match=says):
            replace(book_of([1, 2, 3]), **change)


@pytest.mark.parametrize(
    "table", [book_of([1, 2, 3]), packed_codebook(), coded_table()], ids=["pairs", "packed", "coded"]
)
def test_damaged_sizes_and_arrays_are_refused(table):
    sizes, arrays = table.stored()
    for name in arrays:
        if arrays[name].size:
            with pytest.raises(InputError):
                read_table(sizes, {other: array for other, array in arrays.items() if other != name})
    for name in sizes:
        if name not in ("kind", "exact_type"):
            with pytest.raises(InputError):
                read_table({other: size for other, size in sizes.items() if other != name}, arrays)
    with pytest.raises(InputError, match="a kind of table that this version does not know: 'tree'"):
        read_table({**sizes, "kind": "tree"}, arrays)
    if sizes["kind"] != "coded":
        assert codebook_of(table) is table
        return
    with pytest.raises(InputError, match="the table of this model is coded: it has no anchors"):
        codebook_of(table)


def slow_row(table: CodedTable, row: int) -> np.ndarray:
    """A row by the formula: a sum of entries of books, rotated."""
    arrays, shape = table.arrays, table.shape
    depths = [int(arrays["depths"][i // 2] >> (4 * (i % 2))) & 15 for i in range(shape.rows)]
    place = sorted(range(shape.rows), key=lambda i: -depths[i]).index(row)  # a stable order
    if depths[row] == 15:
        return arrays["exact"][place].astype(np.float64)
    total = np.zeros(shape.dim)
    for number, stage in enumerate(shape.stages[: depths[row]]):
        book, codes = arrays[f"book_{number}"], arrays[f"codes_{number}"][:, place - shape.exact]
        for piece, code in enumerate(codes):
            entry = book[0 if stage.shared else piece, code] * float(arrays[f"scale_{number}"][piece, 0, 0])
            total[piece * stage.width : (piece + 1) * stage.width] += entry
    return total @ (arrays["rotation"] * arrays["rotation_scale"].astype(np.float64)) + arrays["mean"]


@given(shape=table_shapes(), seed=st.integers(0, 9))
def test_rows_of_a_coded_table_are_sums_of_entries_of_its_books(shape, seed):
    table = coded_table(shape, seed)
    ids = np.random.default_rng(seed).integers(0, shape.rows, 12)
    expected = np.stack([slow_row(table, row) for row in ids])
    assert table.rows(ids).dtype == np.float32
    np.testing.assert_allclose(table.rows(ids), expected, rtol=1e-4, atol=1e-4)
    again = read_table(*table.stored())
    assert np.array_equal(again.rows(ids), table.rows(ids))
    assert (again.vocabulary, again.dim) == (shape.rows, shape.dim)


def test_arrays_that_do_not_fit_a_coded_table_are_refused():
    table = coded_table(TableShape(4, 8, 1, (Stage(4, 3), Stage(2, 1))))
    for name, change in (
        ("codes_1", lambda array: array[:, :-1]),
        ("codes_0", lambda array: array.astype(np.float32)),  # could not be used as indices
        ("rotation", lambda array: array[:-1]),
        ("mean", lambda array: np.full_like(array, np.nan)),
        ("exact", lambda array: np.full_like(array, np.inf)),
    ):
        with pytest.raises(InputError, match=f"'{name}'"):
            CodedTable(table.shape, {**table.arrays, name: change(table.arrays[name])})
    for number, depths in enumerate(
        ([15, 2, 1, 1], [15, 1, 1, 1], [15, 2, 2, 1], [15, 2, 1, 0], [15, 15, 1, 1], [14, 2, 1, 1])
    ):
        arrays = {
            **table.arrays,
            "depths": np.array([depths[0] | depths[1] << 4, depths[2] | depths[3] << 4], np.uint8),
        }
        if number == 0:  # those of the shape
            assert CodedTable(table.shape, arrays).exact_rows.tolist() == [0]
            continue
        with pytest.raises(InputError, match="damaged"):
            CodedTable(table.shape, arrays)


def test_shapes_no_coded_table_can_have_are_refused():
    table = coded_table()
    for change in (
        {"rows": True}, {"rows": 17}, {"dim": 0}, {"exact": "2"}, {"exact": 19}, {"exact": -1},
        {"stages": [{"width": 4, "rows": 0}]}, {"stages": [{"width": 4, "rows": 5}, {"width": 4, "rows": 6}]},
        {"stages": [{"width": 3, "rows": 5}]}, {"stages": [{"width": 8, "rows": 1}] * 15}, {"stages": [{"width": 8}]},
        {"stages": 3}, {"exact_type": "text"},
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"cannot have .* the stages|not the shape of a coded table"):
            read_table({"kind": "coded", **asdict(CODED), **change}, table.arrays)
    assert TableShape.from_dict(asdict(CODED)) == CODED
    for kind in ("float16", "float32"):
        shape = replace(CODED, exact_type=kind)
        assert shape.nbytes == sum(array.nbytes for array in coded_table(shape).arrays.values())
