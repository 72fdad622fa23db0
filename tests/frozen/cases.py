"""The frozen models as plain arrays: settings, random weights drawn with numpy, texts. Nothing of `ade` is used here.

Every array is drawn by the name of its model and its own, so that a model can be added without changing another.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

DIM, HEADS, ANCHORS, MOST_PAIRS, MAX_TOKENS = 16, 4, 12, 5, 32
VOCABULARY = """
    [PAD] [UNK] the a of and in it was is on for that with not very bank river money water loan price market film actor
    scene boring great terrible goal match team coach league score orbit rocket comet planet lunar probe slow fast good
    bad book story plot music
"""
WORDS = VOCABULARY.split()
TEXTS = (
    "the bank of the river was very great",
    "a loan from the bank is money",
    "the film was not good and the plot was boring",
    "team",
    "the rocket was slow , the probe fast : a lunar orbit , then the comet and the planet",
    "a goal",
    "unseen words only here",
    "music music music and a very very good story , with a great actor in it on the scene",
)
SENTENCES = tuple(tuple(text.split()) for text in TEXTS)


@dataclass(frozen=True)
class Case:
    """One frozen model: what it is apart from its weights."""

    name: str
    task: str = "single"  # single, multi, regression, tags, vectors
    attend: str = "tokens"
    sat: bool = True
    layers: int = 1
    positions: str = "grouped"
    pooling: str = "attention"
    lexicon: bool = False
    packed: bool = False
    coded: bool = False
    labels: tuple[str, ...] = ("space", "money", "film")

    @property
    def outputs(self) -> int:
        """Rows of the last layer: labels, or the width of the vectors."""
        return {"vectors": 24, "regression": 1}.get(self.task, len(self.labels))


CASES = {
    case.name: case
    for case in (
        Case("tokens", lexicon=True),
        Case("tokens-mean", pooling="mean", positions="none"),
        Case("tokens-without-sat", sat=False),
        Case("anchors", attend="anchors"),
        Case("anchors-each", attend="anchors", positions="each"),
        Case("packed", packed=True, lexicon=True),
        Case("packed-anchors", packed=True, attend="anchors"),
        Case("multi-label", task="multi", lexicon=True),
        Case("regression", task="regression", labels=("value",)),
        Case("tags", task="tags", labels=("O", "B-PER", "I-PER", "B-LOC")),
        Case("two-layers", layers=2, lexicon=True),
        Case("encoder", task="vectors"),
        Case("encoder-two-layers", task="vectors", layers=2),
        Case("encoder-coded", task="vectors", coded=True),
    )
}
SCALE = (3.5, 1.5)  # mean and standard deviation of the targets of a regression
POSITION_SCALE = 0.5


def normal(case: str, name: str, *shape: int, scale: float = 1.0) -> np.ndarray:
    """A float32 array of normal numbers that depend on the names alone."""
    generator = np.random.default_rng(zlib.crc32(f"{case}/{name}".encode()))
    return (scale * generator.standard_normal(shape)).astype(np.float32)


def whole(case: str, name: str, end: int, *shape: int) -> np.ndarray:
    """Whole numbers from 0 up to `end`, drawn likewise."""
    return np.random.default_rng(zlib.crc32(f"{case}/{name}".encode())).integers(end, size=shape)


def pairs(case: str) -> dict[str, np.ndarray]:
    """Anchors, and one to five pairs a token; in a packed model the last rows of the anchors are two tokens' own."""
    counts = 1 + whole(case, "counts", MOST_PAIRS, len(WORDS))
    indices = [whole(case, f"indices {i}", 10**9, ANCHORS).argsort(kind="stable")[:n] for i, n in enumerate(counts)]
    table = {
        "anchors": normal(case, "anchors", ANCHORS, DIM),
        "indices": np.concatenate(indices),
        "weights": normal(case, "weights", int(counts.sum()), scale=0.7),
        "counts": counts,
    }
    if not CASES[case].packed:
        return table

    # Tokens 16 and 17 have a row of their own, in 8 and in 4 bits: the packed form's other kinds of rows.
    own = np.repeat(np.isin(np.arange(len(WORDS)), (16, 17)), counts)
    first = np.flatnonzero(own & np.concatenate([[True], np.diff(np.repeat(np.arange(len(WORDS)), counts)) > 0]))
    table["indices"][first] = ANCHORS, ANCHORS + 1
    kept = ~own
    kept[first] = True
    table["weights"][first] = np.abs(table["weights"][first])
    return {
        "anchors": np.vstack([table["anchors"], normal(case, "own", 2, DIM)]),
        "indices": table["indices"][kept],
        "weights": table["weights"][kept],
        "counts": np.where(np.isin(np.arange(len(WORDS)), (16, 17)), 1, counts),
    }


STAGES = ((4, 40), (2, 25), (2, 10))  # width of a code, rows that have the stage: of the coded tables
EXACT = 4  # rows that stay whole
ENTRIES = 256


def codes(case: str, rows: int = len(WORDS), dim: int = DIM, scale: float = 1.0) -> dict[str, np.ndarray]:
    """A coded table: whole rows, books of whole bytes, codes; `depths` is the number of stages of each row."""
    depths = np.full(rows, 15)
    for number, (_, count) in enumerate(STAGES):
        depths[EXACT : EXACT + (rows - EXACT if number == 0 else count)] = number + 1
    order = whole(case, "order", 10**9, rows).argsort(kind="stable")
    rotation = np.linalg.qr(normal(case, "rotation", dim, dim))[0]
    rotation_scale = np.abs(rotation).max(1, keepdims=True) / np.float32(127)
    table: dict[str, np.ndarray] = {
        "depths": depths[order].astype(np.uint8),
        "exact": normal(case, "exact", EXACT, dim, scale=scale).astype(np.float16),
        "mean": normal(case, "mean", dim, scale=0.1 * scale),
        "rotation": np.round(rotation / rotation_scale).astype(np.int8),
        "rotation_scale": rotation_scale,
    }
    for number, (width, count) in enumerate(STAGES):
        coded, pieces = rows - EXACT if number == 0 else count, dim // width
        shared = number == 2
        table[f"codes_{number}"] = whole(case, f"codes {number}", ENTRIES, pieces, coded).astype(np.uint8)
        books = np.clip(
            np.round(40 * normal(case, f"book {number}", 1 if shared else pieces, ENTRIES, width)), -127, 127
        )
        books[:, 0, 0] = 127  # so that rounding the books again changes nothing
        table[f"book_{number}"] = books.astype(np.int8)
        table[f"scale_{number}"] = (
            scale * (0.01 + 0.005 * np.abs(normal(case, f"scale {number}", pieces, 1, 1))) / 2**number
        )
    return table


def layers(case: str) -> dict[str, np.ndarray]:
    """Weights of everything after the table, by plain names: `sat.output.weight`, `head.bias`, ..."""
    given, d = CASES[case], DIM
    shapes: dict[str, tuple[int, ...]] = {"norm.weight": (d,), "norm.bias": (d,)}
    linears: dict[str, tuple[int, int]] = {"head": (given.outputs, d)}
    if given.sat:
        linears |= {"sat.projection": (3 * d, d), "sat.output": (d, d)}
    if given.task != "tags":
        linears["pooler"] = (1, d)
    for i in range(given.layers - 1):
        at = f"layers.{i}."
        shapes |= {f"{at}{norm}.{part}": (d,) for norm in ("attention_norm", "norm") for part in ("weight", "bias")}
        linears |= {f"{at}sat.projection": (3 * d, d), f"{at}sat.output": (d, d)}
        linears |= {f"{at}inner": (4 * d, d), f"{at}outer": (d, 4 * d)}
    for name, (outputs, inputs) in linears.items():
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    arrays = {}
    for name, shape in shapes.items():
        norm = "norm" in name and name.endswith("weight")
        arrays[name] = normal(case, name, *shape, scale=0.3) + (1 if norm else 0)
    return arrays


def lexicon(case: str, entries: int = 60, shared: int = 6) -> dict[str, np.ndarray]:
    """Keys of tokens and of pairs of neighbours that the texts have, idf, and scores as one pair an entry."""
    vocabulary = len(WORDS)
    ids = [[WORDS.index(word) if word in WORDS else 1 for word in text] for text in SENTENCES]
    single = {token for text in ids for token in text}
    double = {vocabulary * (first + 1) + second for text in ids for first, second in pairwise(text)}
    keys = np.array(sorted(single | double))
    keys = keys[np.sort(whole(case, "kept", 10**9, len(keys)).argsort(kind="stable")[:entries])]
    return {
        "keys": keys,
        "idf": 1 + np.abs(normal(case, "idf", len(keys))),
        "anchors": normal(case, "lexicon anchors", shared, CASES[case].outputs),
        "indices": whole(case, "lexicon indices", shared, len(keys)),
        "weights": normal(case, "lexicon weights", len(keys)),
        "bias": normal(case, "lexicon bias", CASES[case].outputs, scale=0.2),
    }


@dataclass(frozen=True)
class Compressed:
    """A tiny causal language model of another library whose table is coded."""

    name: str
    tied: bool
    rows: int = 61
    dim: int = 16
    settings: Mapping[str, Any] = field(
        default_factory=lambda: {
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24,
            "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        }
    )  # fmt: skip


COMPRESSED = {case.name: case for case in (Compressed("compressed-tied", True), Compressed("compressed-untied", False))}
IDS = np.array([[5, 9, 33, 60, 7, 12, 5], [1, 2, 3, 59, 58, 40, 41]])  # of the compressed models
