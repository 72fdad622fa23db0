"""ONNX: a trained model for other runtimes, written only where its scores equal PyTorch's.

`model.onnx` has the model's values in float32. `model.int8.onnx` has them in 8 bits as `packing/format.py` stores them,
and those of a packed model as they are; a lexicon is stored as it is in both. Both compute in float32, so padding
changes nothing. With them go `tokenizer.json` and `config.json`: all that a runtime without Python needs.
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
from ade.integrations.onnx_graph import build_encoder_graph, build_graph
from ade.model import AdeForSequenceClassification
from ade.packing.format import Packing
from ade.packing.unpack import unpacked
from ade.sentence_encoder import SentenceEncoder
from ade.sentence_model import AdeForSentenceEmbedding

FP32, INT8 = "model.onnx", "model.int8.onnx"
ROUNDING = 1e-4  # how far a score may be off, relative to the largest score or 1: sums in another order
QUANTISATION = 0.05  # how far 8 bits may move a score, relative to the spread of the scores
CLEAR_MARGIN = 0.01  # a decision is clear where it is won by this much, relative to the spread
AGREEMENT = 0.95  # of the clear decisions, those that 8 bits must leave as they are
BATCH_SHAPES = ((1, 1), (64, 1), (3, 2), (16, 7), *[(64, 24)] * 4, (8, 61))  # texts x tokens of the batches compared
ATTENTION_SCORES = 1 << 27  # of a batch compared, at most: what it needs stays below a gigabyte
Batch = tuple[np.ndarray, np.ndarray]  # token ids and mask, (B, L) int64 each
Model = AdeForSequenceClassification | AdeForSentenceEmbedding


@dataclass(frozen=True)
class ExportedFile:
    """A file of an export, and how far its scores are from PyTorch's."""

    file: str
    bytes: int
    difference: float  # the largest of a score
    spread: float  # PyTorch's highest score minus its lowest
    same: float  # fraction of the clear decisions that are PyTorch's

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)


def export(
    model: Classifier | SentenceEncoder, folder: str | Path, overwrite: bool = False, seed: int = 0
) -> tuple[ExportedFile, ...]:
    """Write a model as ONNX, in float32 and in 8 bits, with its tokenizer and labels.

    Both files are first compared with PyTorch on random texts, drawn from `seed`; where one differs, nothing is written
    and an `InputError` is raised.
    """
    with new_folder(Path(folder), {INT8}, overwrite) as draft:
        return write_export(model, draft, seed)


def write_export(exported: Classifier | SentenceEncoder, folder: Path, seed: int = 0) -> tuple[ExportedFile, ...]:
    """Write the files of an export into a folder that exists."""
    check_installed()
    problem = exported.problem if isinstance(exported, Classifier) else REGRESSION
    model: Model = copy.deepcopy(exported.model.packed()).to("cpu", torch.float32).eval()
    quantised = _quantised(model)
    files = {
        FP32: _graph(model, *unpacked(model.config.to_dict(), model.arrays()), problem),
        INT8: _graph(model, quantised.config.to_dict(), quantised.arrays(), problem),
    }

    batches = list(_random_batches(model, seed))
    expected = _pytorch_scores(model, batches)
    compared = (
        _compare(FP32, files[FP32], batches, expected, expected, problem),
        _compare(INT8, files[INT8], batches, expected, _pytorch_scores(quantised, batches), problem),
    )

    for name, data in files.items():
        (folder / name).write_bytes(data)
    exported.tokenizer.save(str(folder / "tokenizer.json"), pretty=False)  # it truncates to exported.longest
    described = json.dumps(_description(exported, compared), indent=2, ensure_ascii=False)
    (folder / "config.json").write_text(described + "\n", "utf8")
    return compared


def _graph(model: Model, config: dict[str, Any], state: dict[str, np.ndarray], problem: str) -> bytes:
    if isinstance(model, AdeForSequenceClassification):
        return build_graph(config, state, problem)
    return build_encoder_graph(config, state)


def _description(exported: Classifier | SentenceEncoder, compared: tuple[ExportedFile, ...]) -> dict[str, Any]:
    """What a runtime needs to know beside the graph: the contents of `config.json`."""
    before, after = special_tokens_around(exported.tokenizer)
    about: dict[str, Any] = {"dim": exported.dim} if isinstance(exported, SentenceEncoder) else {
        "problem": exported.problem, "labels": list(exported.names),
    }  # fmt: skip
    return {
        "ade": __version__,
        **about,
        "max_tokens": exported.max_tokens,  # of a window: longer texts are split in a classifier's graph
        "max_length": exported.longest,  # tokens to cut a text to
        "before": before,  # special tokens around every text, within max_length
        "after": after,
        "files": [each.as_dict() for each in compared],
    }


# -- what is stored ------------------------------------------------------------------------------------------------


def _quantised(model: Model) -> Model:
    """The model in 8 bits a number; itself, where it is packed already."""
    if model.config.packed:
        return model
    config = AdeConfig.from_dict({**model.config.to_dict(), "packing": Packing(weight_bits=8).as_dict()})
    quantised = type(model)(config)
    quantised.load_state_dict(model.state_dict())
    return quantised.packed()


# -- comparison with PyTorch ---------------------------------------------------------------------------------------


def check_installed() -> None:
    """Refuse where ONNX or its runtime is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise InputError(f"an export needs ONNX: pip install 'ade-embeddings[onnx]' ({error})") from None


def _random_batches(model: Model, seed: int) -> Iterator[Batch]:
    """Random texts in batches of several shapes, masks ragged; every other text is made of lexicon entries."""
    config, generator = model.config, np.random.default_rng(seed)
    lexicon = getattr(model, "lexicon", None)  # an encoder has none
    keys = np.empty(0, np.int64) if lexicon is None else lexicon.unpacked().keys
    for batch, length in _batch_shapes(config, windows=isinstance(model, AdeForSequenceClassification)):
        mask = np.arange(length) < generator.integers(1, length + 1, (batch, 1))
        mask[0] = True
        mask[2::3] &= generator.random(mask[2::3].shape) < 0.8  # some have holes
        mask[:, 0] |= ~mask.any(1)

        ids = generator.integers(0, config.vocab_size, mask.shape)
        if len(keys):  # random pairs of tokens are hardly ever in the lexicon
            entries = _entries_as_tokens(generator.choice(keys, ids[::2].size), config.vocab_size)
            ids[::2] = entries[: ids[::2].size].reshape(ids[::2].shape)
        yield ids, mask.astype(np.int64)


def _batch_shapes(config: AdeConfig, windows: bool) -> Iterator[tuple[int, int]]:
    """Texts and tokens of each batch: as long as a window, of three windows, and short ones, where memory allows it."""
    per_token = int(config.max_pairs) if config.attend == "anchors" else 1  # elements attended over, at most
    products = ATTENTION_SCORES // (config.num_attention_heads * per_token**2)  # of a query and a key token, at most
    window = int(config.max_tokens)
    longest = min(window, max(1, math.isqrt(products)))

    for batch, length in ((1, longest), *BATCH_SHAPES):
        length = min(length, longest)
        yield min(batch, max(1, products // length**2)), length

    texts = min(4, products // (3 * window**2))
    if texts and windows:
        yield texts, 2 * window + max(1, window // 3)


def _entries_as_tokens(keys: np.ndarray, vocabulary: int) -> np.ndarray:
    """The tokens of lexicon entries, one entry after the other; at least one token an entry."""
    first, second = keys // vocabulary - 1, keys % vocabulary  # the key of a single token has no first
    tokens = np.stack([first, second], 1).ravel()
    return tokens[tokens >= 0]


@torch.inference_mode()
def _pytorch_scores(model: Model, batches: list[Batch]) -> np.ndarray:
    """PyTorch's scores of all texts, (n, C), or their vectors (n, D)."""
    return np.concatenate([model(torch.from_numpy(ids), torch.from_numpy(mask))[0].numpy() for ids, mask in batches])


def session_of(data: bytes) -> Any:
    """Load a graph into ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _onnx_scores(data: bytes, batches: list[Batch]) -> np.ndarray:
    """ONNX Runtime's scores of all texts, (n, C), or their vectors (n, D): the first output of the graph."""
    session = session_of(data)
    return np.concatenate([session.run(None, {"input_ids": ids, "attention_mask": mask})[0] for ids, mask in batches])


def _compare(
    name: str, data: bytes, batches: list[Batch], expected: np.ndarray, same_values: np.ndarray, problem: str
) -> ExportedFile:
    """Refuse a file whose scores differ from PyTorch's.

    By more than rounding from `same_values`, the scores of the PyTorch model with the values stored in the file, or by
    more than quantisation may from `expected`, those of the model as it was trained.
    """
    scores = _onnx_scores(data, batches)
    error, allowed = np.abs(scores - same_values).max(), ROUNDING * max(1.0, np.abs(same_values).max())
    if not error <= allowed:  # nor where it is NaN
        raise InputError(f"{name}: {error:.2g} off PyTorch, at most {allowed:.2g} would do; nothing was written")

    spread = float(expected.max() - expected.min())
    difference, same = float(np.abs(scores - expected).max()), _agreement(scores, expected, spread, problem)
    if not (difference <= QUANTISATION * spread + ROUNDING and same >= AGREEMENT):
        raise InputError(
            f"{name}: {difference:.2g} off PyTorch, where scores spread over {spread:.2g}, and {100 * same:.0f}% of "
            f"the labels the same; 8 bits are too few for this model, and nothing was written"
        )
    return ExportedFile(name, len(data), difference, spread, same)


def _agreement(scores: np.ndarray, expected: np.ndarray, spread: float, problem: str) -> float:
    """The fraction of the clear decisions of the expected scores (n, C) that are taken by other scores too."""
    margin = CLEAR_MARGIN * spread
    if problem == REGRESSION:  # nothing is decided
        return 1.0
    if problem == MULTI:  # each label by itself
        clear = np.abs(expected - MULTI_LABEL_LOGIT) >= margin
        same = (scores >= MULTI_LABEL_LOGIT) == (expected >= MULTI_LABEL_LOGIT)
    else:
        ascending = np.sort(expected, 1)
        second = ascending[:, -2:-1].max(1, initial=-np.inf)  # a model of one label has none
        clear, same = ascending[:, -1] - second >= margin, scores.argmax(1) == expected.argmax(1)
    return float(same[clear].mean()) if clear.any() else 1.0
