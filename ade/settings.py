"""All settings, as frozen dataclasses; `ade VERB --set help` lists those without an option.

They are apart from the code that uses them, so that `ade --help` imports nothing heavy.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Annotated, Literal, get_args, get_origin

from ade.errors import InputError


def parse_size(text: str) -> int:
    """Parse a size such as '2MB', '1.5 MiB', '800kB' or '100000' into bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    number = text.strip().rstrip("bBkKmMgGiI").strip()
    unit = text.strip()[len(number) :].strip().lower()
    try:
        size = int(float(number) * units[unit])
    except (KeyError, ValueError, OverflowError):
        raise InputError(f"'{text}' is not a size; write 2MB, 1.5MiB or 800kB") from None
    if size <= 0:
        raise InputError(f"a size must be positive, not '{text}'")
    return size


def parse_percent(text: str) -> float:
    """Parse a percentage such as '2%' or '0.5' into a number of percent."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        raise InputError(f"'{text}' is not a percentage; write 2% or 0.5%") from None
    if not 0 < percent <= 100:
        raise InputError(f"a percentage must be above 0 and at most 100, not '{text}'")
    return percent


EPOCHS = 8  # default number of epochs
MAX_SEED = (1 << 32) - 1  # the largest that numpy takes
COUNTS = (
    "anchors", "pairs", "rounds", "layers", "max_tokens", "batch_size", "tune_steps", "max_bytes", "max_texts",
    "max_chars", "max_requests", "batch_tokens", "queue_tokens",
)  # fmt: skip
LIMITS: dict[str, tuple[float, float]] = {  # smallest and largest value
    **dict.fromkeys(COUNTS, (1, inf)),
    **dict.fromkeys(("threshold", "heads", "dim", "steps", "warmup_steps", "weight_decay", "grace"), (0, inf)),
    **dict.fromkeys(("epochs", "timeout"), (0.001, inf)),
    **dict.fromkeys(("dropout", "token_dropout"), (0, 0.99)),
    "learning_rate": (1e-9, inf),
    "seed": (0, MAX_SEED),
}
TEXTS: dict[str, Callable[[str], float]] = {"size": parse_size, "lexicon_size": parse_size, "max_loss": parse_percent}


@dataclass(frozen=True)
class Settings:
    """Settings whose values are checked, by their names and by the choices of their types."""

    def __post_init__(self) -> None:
        for field in fields(self):
            name, given, kind = field.name, getattr(self, field.name), get_args(field.type)[0]
            choices = get_args(kind) if get_origin(kind) is Literal else (given,)
            if given not in choices:
                raise InputError(f"{name} must be one of {', '.join(map(str, choices))}, not {given}")
            if name in LIMITS and given is not None:
                least, most = LIMITS[name]
                if not least <= given <= most:
                    limits = f"at least {least}" if most == inf else f"between {least} and {most}"
                    raise InputError(f"{name} must be {limits}, not {given}")
            if name in TEXTS and given:
                TEXTS[name](given)  # raises for what is no size, no percentage


@dataclass(frozen=True)
class DistillationSettings(Settings):
    """Settings of `distill`: how a codebook is made from a teacher."""

    anchors: Annotated[int, "K, the number of shared anchors"] = 500
    pairs: Annotated[int, "maximum number of (index, weight) pairs per token"] = 8
    threshold: Annotated[float, "tau: drop pairs of smaller absolute weight (rows have norm 1)"] = 0.0
    solver: Annotated[
        Literal["pursuit", "gradient"], "pursuit (orthogonal matching pursuit) or gradient (the paper's)"
    ] = "pursuit"
    signed: Annotated[bool, "allow negative weights"] = True
    rounds: Annotated[int, "iterations over the embedding table"] = 12
    seed: Annotated[int, "random seed"] = 0
    device: Annotated[str, "auto, cpu or cuda"] = "auto"


@dataclass(frozen=True)
class Architecture(Settings):
    """Architecture of a model on a given codebook."""

    attend: Annotated[Literal["tokens", "anchors"], "attend over tokens, or over all their anchors"] = "tokens"
    sat: Annotated[bool, "use the attention layer (SAT), or pool the composed tokens as they are"] = True
    layers: Annotated[int, "attention layers; from the second on with feed-forward blocks: more accurate, slower"] = 1
    positions: Annotated[
        Literal["grouped", "each", "none"], "grouped: one position per word (GPE); each: one per anchor; none"
    ] = "grouped"
    pooling: Annotated[
        Literal["attention", "mean"], "pool a text's vectors by learned attention weights or by their mean"
    ] = "attention"
    heads: Annotated[int, "number of attention heads; 0 for heads of width 64"] = 0
    max_tokens: Annotated[int, "tokens of a text that attention reads; the n-gram scores read all of it"] = 512
    layer_bits: Annotated[int, "bits of the layers' weights in a model on a packed codebook: 4, 8 or 16"] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "each" and self.attend != "anchors":
            raise InputError("positions must be grouped or none over tokens, not each")
        if self.layer_bits not in (4, 8, 16):
            raise InputError(f"layer_bits must be 4, 8 or 16, not {self.layer_bits}")


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """Settings of `train`; start from one of the presets `STRONG` and `PAPER`."""

    epochs: Annotated[
        float | None,
        f"passes over the rows; by default none on an encoder, {EPOCHS} or as fit_to_data chooses on a table",
    ] = None
    steps: Annotated[int, "optimizer steps, instead of epochs"] = 0
    batch_size: Annotated[int, "texts per optimizer step"] = 64
    learning_rate: Annotated[float, "peak learning rate, after the warm-up (with fit_to_data: at 4 classes)"] = 7e-4
    lexicon: Annotated[bool, "add n-gram scores to the model's where this improves validation"] = True
    lexicon_size: Annotated[str, "size limit of the n-gram scores, as 300kB; without it validation decides"] = ""
    class_weights: Annotated[
        Literal["none", "balanced"], "balanced: weight classes by the inverse of their frequency"
    ] = "none"
    fit_to_data: Annotated[
        bool, "adapt learning rate, dropout and steps to the rows, classes and text lengths of the data"
    ] = True
    warmup_steps: Annotated[int, "linear warm-up steps (at most a tenth of all steps)"] = 500
    weight_decay: Annotated[float, "weight decay of AdamW, for all trained parameters"] = 0.1
    dropout: Annotated[float, "dropout probability"] = 0.2
    token_dropout: Annotated[float, "maximum fraction of tokens dropped per text"] = 0.6
    position_scale: Annotated[float, "factor of the position encodings"] = 0.1
    train_anchors: Annotated[bool, "train the anchors"] = True
    train_weights: Annotated[bool, "train the weights of the pairs"] = True
    seed: Annotated[int, "random seed"] = 0
    device: Annotated[str, "auto, cpu or cuda"] = "auto"


@dataclass(frozen=True)
class EncoderSettings(Settings):
    """Settings of `distill_encoder`: a small encoder of sentences, taught by a large one."""

    size: Annotated[str, "size of the folder, tokenizer included"] = "8MB"
    layers: Annotated[int, "attention layers: 1 is fastest, 2 is more accurate"] = 1
    dim: Annotated[int, "dimensions of the vectors; 0 for as many as the teacher's have"] = 0
    epochs: Annotated[float, "passes over the texts"] = EPOCHS
    steps: Annotated[int, "optimizer steps, instead of epochs"] = 0
    batch_size: Annotated[int, "texts per optimizer step"] = 256
    learning_rate: Annotated[float, "peak learning rate of one layer; with more, a third of it is used"] = 3e-3
    max_tokens: Annotated[int, "tokens a text is truncated to"] = 128
    seed: Annotated[int, "random seed"] = 0
    device: Annotated[str, "auto, cpu or cuda"] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size < 2:
            raise InputError(f"batch_size must be at least 2, not {self.batch_size}: texts of a batch are compared")


@dataclass(frozen=True)
class CompressionSettings(Settings):
    """Settings of `compress`: how the embedding table of another model is packed."""

    size: Annotated[str, "bytes of the packed tables, as 12MB; by default a sixteenth of those in float32"] = ""
    head: Annotated[bool, "pack an output table of its own too, in the same bytes; a tied one always is"] = False
    max_loss: Annotated[str, "most loss on held-out text, as 2%; more bytes are spent until it holds"] = ""
    tune_steps: Annotated[int, "optimizer steps of --tune"] = 400
    device: Annotated[str, "auto, cpu or cuda"] = "auto"

    def nbytes(self, numbers: int) -> int:
        """The bytes that tables of so many numbers may take together."""
        return parse_size(self.size) if self.size else 4 * numbers // 16


@dataclass(frozen=True)
class ServiceSettings(Settings):
    """Limits of `serve`: of a request, of a batch, of what waits, and of a graceful shutdown."""

    max_bytes: Annotated[int, "maximum bytes of a request body"] = 1 << 20
    max_texts: Annotated[int, "maximum texts per request"] = 256
    max_chars: Annotated[int, "maximum characters per text"] = 20_000
    max_requests: Annotated[int, "maximum requests at once; further ones get status 503"] = 512
    timeout: Annotated[float, "seconds in which a body must arrive and be answered"] = 30.0
    batch_tokens: Annotated[int, "maximum tokens per batch, estimated as a quarter of the bytes"] = 1024
    queue_tokens: Annotated[int, "maximum estimated tokens waiting; further requests get status 503"] = 1 << 20
    grace: Annotated[float, "seconds after SIGTERM in which new requests are still accepted"] = 2.0


STRONG = TrainingSettings()
PAPER = TrainingSettings(
    epochs=EPOCHS, batch_size=32, learning_rate=2e-5, warmup_steps=500, weight_decay=0.01,
    fit_to_data=False, dropout=0.1, token_dropout=0.0, position_scale=1.0, train_anchors=True, train_weights=False,
    lexicon=False,
)  # fmt: skip
PRESETS = {"strong": STRONG, "paper": PAPER}
