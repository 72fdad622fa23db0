"""ONNX: a trained model for other runtimes, left on disk only where it says what PyTorch says.

`model.onnx` has the model's values in float32. `model.int8.onnx` has them in 8 bits as `packing.py` stores them, and
those of a packed model as they are; both compute in float32, so padding changes nothing. With them go `tokenizer.json`
and `config.json`: all that a runtime without Python needs.
"""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ade import __version__
from ade.classifier import Classifier
from ade.configuration import AdeConfig
from ade.data.problems import MULTI, MULTI_LABEL_LOGIT, REGRESSION
from ade.data.tokenize import special_tokens_around
from ade.errors import InputError
from ade.files import new_folder
from ade.integrations.onnx_graph import graph_of
from ade.model import AdeForSequenceClassification
from ade.packing import format as packing
from ade.packing.format import Packing
from ade.packing.pairs import PackedPairs
from ade.runtime.projection import INSIDE

FP32, INT8 = "model.onnx", "model.int8.onnx"
EXACT = 1e-4  # how far a score may be off, of the largest score or 1: rounding in another order
CLOSE = 0.05  # how far 8 bits may move a score, of the spread of the scores
CLEAR = 0.01  # a decision is clear where it is won by so much of the spread
SAME = 0.95  # of the clear decisions 8 bits must not change
SHAPES = ((1, 1), (64, 1), (3, 2), (16, 7), *[(64, 24)] * 4, (8, 61))  # texts x tokens, beside one as long as may be
SCORES = 1 << 27  # attention scores of a batch, at most: what the texts tried need stays below a gigabyte
BLOCK = 8192  # tokens unpacked at a time
Batch = tuple[np.ndarray, np.ndarray]  # token ids and mask, (B, L) int64 each


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export, and how far from PyTorch it was found to be."""

    file: str
    bytes: int
    difference: float  # of a score, the largest
    spread: float  # of PyTorch's scores, from the lowest to the highest
    same: float  # share of the clear decisions that are PyTorch's

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def export(
    classifier: Classifier, folder: str | Path, overwrite: bool = False, seed: int = 0
) -> tuple[ExportedFile, ...]:
    """Write a model as ONNX, in float32 and in 8 bits, with its tokenizer and labels; nothing where a file differs."""
    with new_folder(Path(folder), {INT8}, overwrite) as draft:
        return write_export(classifier, draft, seed)


def write_export(classifier: Classifier, folder: Path, seed: int = 0) -> tuple[ExportedFile, ...]:
    """Write the files of an export into a folder as it is."""
    _check_installed()
    problem = classifier.problem
    model = copy.deepcopy(classifier.model.packed()).to("cpu", torch.float32).eval()
    narrow = _narrowed(model)
    made = {
        FP32: graph_of(*_widened(model), problem),
        INT8: graph_of(narrow.config.to_dict(), narrow.arrays(), problem),
    }
    batches = list(_batches(model.config, seed))
    expected = _asked(model, batches)
    checked = (
        _checked(FP32, made[FP32], batches, expected, expected, problem),
        _checked(INT8, made[INT8], batches, expected, _asked(narrow, batches), problem),
    )
    for name, data in made.items():
        (folder / name).write_bytes(data)
    classifier.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)  # it cuts to max_tokens
    about = _about(classifier, problem, checked)
    (folder / "config.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", "utf8")
    return checked


def _about(classifier: Classifier, problem: str, checked: tuple[ExportedFile, ...]) -> dict[str, Any]:
    before, after = special_tokens_around(classifier.tokenizer)
    return {
        "ade": __version__,
        "problem": problem,
        "labels": list(classifier.names),
        "max_tokens": classifier.max_tokens,
        "before": before,  # special tokens around every text, within max_tokens
        "after": after,
        "files": [each.as_dict() for each in checked],
    }


# -- what is stored ------------------------------------------------------------------------------------------------


def _narrowed(model: AdeForSequenceClassification) -> AdeForSequenceClassification:
    """The model in 8 bits a number; itself, where it is packed already."""
    if model.config.packed:
        return model
    config = AdeConfig.from_dict({**model.config.to_dict(), "packing": Packing(weight_bits=8).as_dict()})
    made = AdeForSequenceClassification(config)
    made.load_state_dict(model.state_dict())
    return made.packed()


def _widened(model: AdeForSequenceClassification) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Config and arrays of the model in float32, unpacked where it is packed."""
    config, state = model.config.to_dict(), model.arrays()
    if not config.get("packed"):
        return config, state
    part = {name.removeprefix(INSIDE): array for name, array in state.items() if name.startswith(INSIDE)}
    wide = {name: array for name, array in state.items() if not name.startswith(INSIDE)}
    pairs = PackedPairs(config["packed"], part)
    blocks = [pairs.of(np.arange(at, min(at + BLOCK, pairs.vocabulary))) for at in range(0, pairs.vocabulary, BLOCK)]
    wide[f"{INSIDE}anchors"] = pairs.anchors()
    wide[f"{INSIDE}indices"] = np.concatenate([index[there] for index, _, there in blocks])
    wide[f"{INSIDE}weights"] = np.concatenate([weight[there] for _, weight, there in blocks])
    wide[f"{INSIDE}counts"] = pairs.counts(np.arange(pairs.vocabulary))
    for name in [name.removesuffix(".scales") for name in wide if name.endswith(".scales")]:
        weight, scales = wide[f"{name}.weight"], wide.pop(f"{name}.scales")
        wide[f"{name}.weight"] = packing.layer_weight(weight, scales, int(config["hidden_size"]))
    return {**config, "packed": None}, wide


# -- whether it says the same --------------------------------------------------------------------------------------


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise InputError(f"an export needs ONNX: pip install 'ade-embeddings[onnx]' ({error})") from None


def _batches(config: AdeConfig, seed: int) -> Iterator[Batch]:
    """Random tokens of the whole vocabulary in batches of several shapes, up to the longest text; masks are ragged."""
    draw = np.random.default_rng(seed)
    width = int(config.max_pairs) if config.attend == "anchors" else 1  # elements a token may be
    room = SCORES // (config.num_attention_heads * width**2)
    longest = min(int(config.max_tokens), max(1, math.isqrt(room)))
    for batch, length in ((1, longest), *SHAPES):
        length = min(length, longest)
        batch = min(batch, max(1, room // length**2))
        mask = np.arange(length) < draw.integers(1, length + 1, (batch, 1))
        mask[0] = True
        mask[2::3] &= draw.random(mask[2::3].shape) < 0.8  # and some have holes
        mask[:, 0] |= ~mask.any(1)
        yield draw.integers(0, config.vocab_size, mask.shape), mask.astype(np.int64)


@torch.inference_mode()
def _asked(model: AdeForSequenceClassification, batches: list[Batch]) -> np.ndarray:
    """PyTorch's scores of all texts: (n, C)."""
    return np.concatenate(
        [model(torch.from_numpy(ids), torch.from_numpy(mask)).logits.numpy() for ids, mask in batches]
    )


def _run(data: bytes, batches: list[Batch]) -> np.ndarray:
    """ONNX Runtime's scores of all texts: (n, C)."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.concatenate(
        [session.run(["logits"], {"input_ids": ids, "attention_mask": mask})[0] for ids, mask in batches]
    )


def _checked(
    name: str, data: bytes, batches: list[Batch], expected: np.ndarray, twin: np.ndarray, problem: str
) -> ExportedFile:
    """Refuse a file that differs from PyTorch: by more than rounding from its `twin`, the model with the same values,
    or by more than 8 bits may from what the model was `expected` to say."""
    scores = _run(data, batches)
    off, allowed = np.abs(scores - twin).max(), EXACT * max(1.0, np.abs(twin).max())
    if not off <= allowed:  # nor where it is not a number
        raise InputError(f"{name}: {off:.2g} off PyTorch, at most {allowed:.2g} would do; nothing was written")
    spread = float(expected.max() - expected.min())
    difference, same = float(np.abs(scores - expected).max()), _same(scores, expected, spread, problem)
    if not (difference <= CLOSE * spread + EXACT and same >= SAME):
        raise InputError(
            f"{name}: {difference:.2g} off PyTorch, where scores spread over {spread:.2g}, and {100 * same:.0f}% of "
            f"the labels the same; 8 bits are too few for this model, and nothing was written"
        )
    return ExportedFile(name, len(data), difference, spread, same)


def _same(scores: np.ndarray, expected: np.ndarray, spread: float, problem: str) -> float:
    """The share of the expected decisions, of those that were clear, that are taken by other scores too."""
    if problem == REGRESSION:  # nothing is decided
        return 1.0
    if problem == MULTI:  # each label by itself
        clear = np.abs(expected - MULTI_LABEL_LOGIT) >= CLEAR * spread
        same = (scores >= MULTI_LABEL_LOGIT) == (expected >= MULTI_LABEL_LOGIT)
    else:
        best = np.sort(expected, 1)
        clear = best[:, -1] - best[:, -2:-1].max(1, initial=-np.inf) >= CLEAR * spread
        same = scores.argmax(1) == expected.argmax(1)
    return float(same[clear].mean()) if clear.any() else 1.0
