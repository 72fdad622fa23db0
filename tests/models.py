"""Random models of every setting, texts for them, and how far apart two results are."""

from dataclasses import replace
from typing import Any

import numpy as np

from ade import plain
from ade.codebook import Codebook, CodedTable, Stage, TableShape
from ade.configuration import CODEBOOK, ENCODER, Config
from ade.data.tokens import Ragged
from ade.folder import Saved, new_layers
from ade.lexicon import Lexicon, key_end
from ade.packing.format import Packing
from ade.plain_backend import plain_model
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


def packed_codebook(own: int = 3, dim: int = 16, anchor_bits: int = 8) -> Codebook:
    """Pairs over 12 anchors; the last tokens have rows of their own, one in 8 bits, the others in 4."""
    plain_book = ragged_codebook([1, 3, 2, 4] * 4 + [1] * own, anchors=12 + own, dim=dim).table
    indices, weights = plain_book.indices % 12, plain_book.weights.copy()
    indices[len(indices) - own :] = 12 + np.arange(own)
    weights[len(weights) - own :] = np.abs(weights[len(weights) - own :])
    packing = Packing(shared=12, fine=min(1, own), anchor_bits=anchor_bits)
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
    table: Codebook | CodedTable | None = None,
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


def codebook_folder(book: Codebook | CodedTable) -> Saved:
    """A table as a folder of its own."""
    return Saved(Config(kind=CODEBOOK), word_tokenizer([f"w{i}" for i in range(book.vocabulary - 2)]), book, {})


def random_texts(lengths: list[int], vocabulary: int, seed: int = 0) -> Ragged:
    """Texts of these lengths."""
    draw = np.random.default_rng(seed)
    return Ragged.of([draw.integers(0, vocabulary, length) for length in lengths])


def oracle(saved: Saved) -> plain.Model:
    """A model with its lexicon in plain numpy, which all else is held against."""
    model, found = plain_model(saved), saved.lexicon
    if found is None:
        return model
    return replace(model, lexicon=plain.Lexicon(found.vocabulary, found.keys, found.idf, found.scores, found.bias))


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, in units of the largest number where that is more than 1."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0)))
