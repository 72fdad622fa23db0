"""All settings, as frozen dataclasses; `ade VERB --set help` lists those without an option.

They are kept apart from the code that uses them so that this file imports nothing heavy and `ade --help` is quick.
"""

from dataclasses import dataclass, field
from typing import Literal

from ade.errors import InputError

MAX_SEED = (1 << 32) - 1  # the largest that numpy takes


def _need(met: bool, name: str, what: str, given: object) -> None:
    """Raise an `InputError` for a setting whose condition is not met."""
    if not met:
        raise InputError(f"{name} must be {what}, not {given}")


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


@dataclass(frozen=True)
class DistillationSettings:
    """Settings of `distill`: how a codebook is made from a teacher."""

    anchors: int = field(default=500, metadata={"help": "K, the number of shared anchors"})
    pairs: int = field(default=8, metadata={"help": "maximum number of (index, weight) pairs per token"})
    threshold: float = field(
        default=0.0, metadata={"help": "tau: drop pairs of smaller absolute weight (rows have norm 1)"}
    )
    solver: Literal["pursuit", "gradient"] = field(
        default="pursuit", metadata={"help": "pursuit (orthogonal matching pursuit) or gradient (the paper's)"}
    )
    signed: bool = field(default=True, metadata={"help": "allow negative weights"})
    rounds: int = field(default=12, metadata={"help": "iterations over the embedding table"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})
    size: str = field(
        default="",
        metadata={
            "help": "size of the folder, tokenizer included, as 2MB or 800kB; sets the number of anchors, pairs, bits"
        },
    )

    def __post_init__(self) -> None:
        for name in ("anchors", "pairs", "rounds"):
            _need(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _need(self.threshold >= 0, "threshold", "0 or more", self.threshold)
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)
        if self.size:
            parse_size(self.size)  # raises for what is no size


@dataclass(frozen=True)
class Architecture:
    """Architecture of a model on a given codebook."""

    attend: Literal["tokens", "anchors"] = field(
        default="tokens", metadata={"help": "attend over tokens, or over all their anchors"}
    )
    sat: bool = field(
        default=True,
        metadata={"help": "use the attention layer (SAT), or pool the composed tokens as they are"},
    )
    layers: int = field(
        default=1,
        metadata={"help": "attention layers; from the second on with feed-forward blocks: more accurate, slower"},
    )
    positions: Literal["grouped", "each", "none"] = field(
        default="grouped", metadata={"help": "grouped: one position per word (GPE); each: one per anchor; none"}
    )
    pooling: Literal["attention", "mean"] = field(
        default="attention", metadata={"help": "pool a text's vectors by learned attention weights or by their mean"}
    )
    heads: int = field(default=0, metadata={"help": "number of attention heads; 0 for heads of width 64"})
    max_tokens: int = field(
        default=512,
        metadata={"help": "tokens of a text that attention reads; the n-gram scores read all of it"},
    )
    layer_bits: int = field(
        default=8, metadata={"help": "bits of the layers' weights in a model on a packed codebook: 4, 8 or 16"}
    )

    def __post_init__(self) -> None:
        _need(self.heads >= 0, "heads", "0 or more", self.heads)
        _need(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _need(self.layers >= 1, "layers", "at least 1", self.layers)
        _need(self.positions != "each" or self.attend == "anchors", "positions", "grouped or none over tokens", "each")
        _need(self.layer_bits in (4, 8, 16), "layer_bits", "4, 8 or 16", self.layer_bits)


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of `train`; start from one of the presets `STRONG` and `PAPER`."""

    epochs: float | None = field(
        default=None,
        metadata={
            "help": f"passes over the training rows; by default {EPOCHS}, or with fit_to_data chosen for the data"
        },
    )
    steps: int = field(default=0, metadata={"help": "optimizer steps, instead of epochs"})
    batch_size: int = field(default=64, metadata={"help": "texts per optimizer step"})
    learning_rate: float = field(
        default=7e-4, metadata={"help": "peak learning rate, after the warm-up (with fit_to_data: at 4 classes)"}
    )
    lexicon: bool = field(
        default=True, metadata={"help": "add n-gram scores to the model's where this improves validation"}
    )
    lexicon_size: str = field(
        default="",
        metadata={"help": "size limit of the n-gram scores, as 300kB; without it validation decides"},
    )
    class_weights: str = field(
        default="none", metadata={"help": "none, or balanced: weight classes by the inverse of their frequency"}
    )
    fit_to_data: bool = field(
        default=True,
        metadata={"help": "adapt learning rate, dropout and steps to the rows, classes and text lengths of the data"},
    )
    warmup_steps: int = field(default=500, metadata={"help": "linear warm-up steps (at most a tenth of all steps)"})
    weight_decay: float = field(default=0.1, metadata={"help": "weight decay of AdamW, for all trained parameters"})
    dropout: float = field(default=0.2, metadata={"help": "dropout probability"})
    token_dropout: float = field(default=0.6, metadata={"help": "maximum fraction of tokens dropped per text"})
    position_scale: float = field(default=0.1, metadata={"help": "factor of the position encodings"})
    train_anchors: bool = field(default=True, metadata={"help": "train the anchors"})
    train_weights: bool = field(default=True, metadata={"help": "train the weights of the pairs"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})

    @staticmethod
    def presets() -> "tuple[TrainingSettings, TrainingSettings]":
        """Return the presets, whose values `--set help` shows."""
        return STRONG, PAPER

    def __post_init__(self) -> None:
        _need(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        _need(self.class_weights in ("none", "balanced"), "class_weights", "none or balanced", self.class_weights)
        for name in ("steps", "warmup_steps", "weight_decay"):
            _need(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        _need(self.epochs is None or self.epochs >= 0, "epochs", "0 or more", self.epochs)
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)
        _need(self.learning_rate > 0, "learning_rate", "above 0", self.learning_rate)
        for name in ("dropout", "token_dropout"):
            _need(0 <= getattr(self, name) < 1, name, "at least 0 and below 1", getattr(self, name))
        if self.lexicon_size:
            parse_size(self.lexicon_size)  # raises for what is no size


@dataclass(frozen=True)
class EncoderSettings:
    """Settings of `distill_encoder`: a small encoder of sentences, taught by a large one."""

    size: str = field(default="8MB", metadata={"help": "size of the folder, tokenizer included"})
    layers: int = field(default=1, metadata={"help": "attention layers: 1 is fastest, 2 is more accurate"})
    dim: int = field(default=0, metadata={"help": "dimensions of the vectors; 0 for as many as the teacher's have"})
    epochs: float = field(default=EPOCHS, metadata={"help": "passes over the texts"})
    steps: int = field(default=0, metadata={"help": "optimizer steps, instead of epochs"})
    batch_size: int = field(default=256, metadata={"help": "texts per optimizer step"})
    learning_rate: float = field(
        default=3e-3, metadata={"help": "peak learning rate of one layer; with more, a third of it is used"}
    )
    max_tokens: int = field(default=128, metadata={"help": "tokens a text is truncated to"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})

    def __post_init__(self) -> None:
        parse_size(self.size)  # raises for what is no size
        for name in ("layers", "max_tokens"):
            _need(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("dim", "steps"):
            _need(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        _need(self.batch_size >= 2, "batch_size", "at least 2: texts of a batch are compared", self.batch_size)
        for name in ("epochs", "learning_rate"):
            _need(getattr(self, name) > 0, name, "above 0", getattr(self, name))
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)


@dataclass(frozen=True)
class CompressionSettings:
    """Settings of `compress`: how the embedding table of another model is packed."""

    size: str = field(
        default="", metadata={"help": "bytes of the packed table, as 12MB; by default a sixteenth of those in float32"}
    )
    head: Literal["tied", "input", "both"] = field(
        default="tied",
        metadata={
            "help": "tied: one packed table for input and output where the model ties them, else the input alone; "
            "input: the input alone; both: an untied output table too, in as many bytes again"
        },
    )
    max_loss: str = field(
        default="",
        metadata={"help": "most loss on held-back text, as 2%; more bytes are spent until it holds"},
    )
    tune_steps: int = field(default=400, metadata={"help": "optimizer steps of --tune"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})

    def __post_init__(self) -> None:
        if self.size:
            parse_size(self.size)  # raises for what is no size
        if self.max_loss:
            parse_percent(self.max_loss)  # raises for what is no percentage
        _need(self.tune_steps >= 1, "tune_steps", "at least 1", self.tune_steps)
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)

    def nbytes(self, rows: int, dim: int) -> int:
        """The bytes that a table of this shape may take."""
        return parse_size(self.size) if self.size else 4 * rows * dim // 16


STRONG = TrainingSettings()
PAPER = TrainingSettings(
    epochs=EPOCHS, batch_size=32, learning_rate=2e-5, warmup_steps=500, weight_decay=0.01,
    fit_to_data=False, dropout=0.1, token_dropout=0.0, position_scale=1.0, train_anchors=True, train_weights=False,
    lexicon=False,
)  # fmt: skip
PRESETS = {"strong": STRONG, "paper": PAPER}
