"""Random models of every setting, texts for them, and how far apart two results are."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ade import plain
from ade.backends import plain_model
from ade.codebook import Codebook, CodedTable, Stage, Table, TableShape
from ade.configuration import CODEBOOK, ENCODER, Config
from ade.data.tokens import Ragged
from ade.folder import Saved, new_layers
from ade.lexicon import Lexicon, key_end
from ade.packing.format import Packing
from tests.conftest import lively, ragged_codebook, word_tokenizer

CODED = TableShape(18, 16, 2, (Stage(8, 16), Stage(4, 9, shared=True), Stage(2, 4)))


def coded_table(shape: TableShape = CODED, seed: int = 0) -> CodedTable:
    """A coded table of random arrays; its rows are in no order of their stages."""
    draw = np.random.default_rng(seed)
    arrays = {}
    for name, (size, kind) in shape.arrays().items():
        if kind in ("uint8", "int8"):
            arrays[name] = draw.integers(0 if kind == "uint8" else -127, 256 if kind == "uint8" else 128, size)
        else:
            arrays[name] = draw.standard_normal(size) * (0.01 if "scale" in name else 1)
        arrays[name] = arrays[name].astype(kind)

    order = draw.permutation(shape.rows)
    depths = np.zeros(shape.rows + shape.rows % 2, np.uint8)
    depths[order[: shape.exact]] = 15
    for stage in shape.stages:
        depths[order[shape.exact : shape.exact + stage.rows]] += 1
    arrays["depths"] = depths[::2] | (depths[1::2] << 4)
    return CodedTable(shape, arrays)


@st.composite
def table_shapes(draw: st.DrawFn) -> TableShape:
    """Shapes of coded tables, with stages for ever fewer rows, down to none."""
    dim, rows = draw(st.sampled_from([1, 6, 8, 12])), draw(st.integers(1, 41))
    left = rows - (exact := draw(st.integers(0, rows)))
    stages = []
    while left and len(stages) < 4 and draw(st.booleans()):
        left = draw(st.integers(1, left)) if stages else left
        width = draw(st.sampled_from([n for n in range(1, dim + 1) if dim % n == 0]))
        stages.append(Stage(width, left, draw(st.booleans())))
    return TableShape(rows, dim, exact, tuple(stages))


def packed_codebook(own: int = 3, dim: int = 16) -> Codebook:
    """Pairs over 12 anchors; the last tokens have rows of their own, one in 8 bits, the others in 4."""
    plain_book = ragged_codebook([1, 3, 2, 4] * 4 + [1] * own, anchors=12 + own, dim=dim).table
    indices, weights = plain_book.indices % 12, plain_book.weights.copy()
    indices[len(indices) - own :] = 12 + np.arange(own)
    weights[len(weights) - own :] = np.abs(weights[len(weights) - own :])
    packing = Packing(shared=12, fine=min(1, own))
    return Codebook(plain_book.anchors, indices, weights, plain_book.counts, packing)


def random_lexicon(vocabulary: int, labels: int, seed: int = 0) -> Lexicon:
    """Half of all tokens and some bigrams, as they are read back when packed."""
    draw = np.random.default_rng(seed)
    tokens, bigrams = (
        draw.permutation(vocabulary)[: vocabulary // 2],
        draw.integers(vocabulary, key_end(vocabulary), 60),
    )
    keys = np.unique(np.concatenate([tokens, bigrams]))
    idf = draw.uniform(1, 9, len(keys)).astype(np.float32)
    scores, bias = draw.standard_normal((len(keys), labels)), draw.standard_normal(labels)
    return Lexicon(vocabulary, keys, idf, scores.astype(np.float32), bias.astype(np.float32)).rounded()


def random_model(
    table: Table | None = None,
    labels: int = 3,
    lexicon: bool = False,
    scale: float = 0.3,
    **config: Any,
) -> Saved:
    """A model of these settings none of whose numbers is at its starting value."""
    table = ragged_codebook([1, 3, 2, 4, 1, 5] * 3, dim=16).table.normalised() if table is None else table
    config = {"heads": 4, "position_scale": 0.5, **config}
    if config.get("kind") == ENCODER:
        config["output_size"] = labels
    else:
        config["labels"] = tuple(f"label {i}" for i in range(labels))
    chosen = Config(**config)
    tokenizer = word_tokenizer([f"w{i}" for i in range(table.vocabulary - 2)])
    saved = lively(Saved(chosen, tokenizer, table, new_layers(chosen, table.dim)), scale=scale)
    return replace(saved, lexicon=random_lexicon(table.vocabulary, labels)) if lexicon else saved


def codebook_folder(book: Table) -> Saved:
    """A table as a folder of its own."""
    return Saved(Config(kind=CODEBOOK), word_tokenizer([f"w{i}" for i in range(book.vocabulary - 2)]), book, {})


def random_texts(lengths: list[int], vocabulary: int, seed: int = 0) -> Ragged:
    """Texts of these lengths."""
    draw = np.random.default_rng(seed)
    return Ragged.of([draw.integers(0, vocabulary, length) for length in lengths])


def oracle(saved: Saved) -> plain.Model:
    """A model with its lexicon in plain numpy, which all else is held against."""
    return plain_model(saved)


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in units of the largest number where that is more than 1."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0)))
