"""Every setting there is, as frozen dataclasses; the command line's flags are made from their fields.

They stand apart from the code they steer for one reason: this file loads nothing heavy, so `ade --help` answers
at once.
"""

from dataclasses import dataclass, field
from typing import Literal

from ade.errors import InputError

MAX_SEED = (1 << 32) - 1  # what every library takes


def _need(met: bool, name: str, what: str, given: object) -> None:
    if not met:
        raise InputError(f"{name} must be {what}, not {given}")


EPOCHS = 8  # passes over the training rows where nobody asks for another number


@dataclass(frozen=True)
class DistillationSettings:
    """How a codebook is made."""

    anchors: int = field(default=500, metadata={"help": "K, the number of shared anchors"})
    pairs: int = field(default=8, metadata={"help": "most (index, weight) pairs a token may have"})
    threshold: float = field(default=0.0, metadata={"help": "tau: drop pairs with a smaller weight (rows have norm 1)"})
    solver: Literal["pursuit", "gradient"] = field(
        default="pursuit", metadata={"help": "pursuit (ours) or gradient (the paper's)"}
    )
    signed: bool = field(default=True, metadata={"help": "let weights be negative"})
    rounds: int = field(default=12, metadata={"help": "rounds over the table"})
    seed: int = field(default=0, metadata={"help": "what every random choice follows from"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})
    size: str = field(
        default="", metadata={"help": "a budget, as 2MB or 800kB: it decides on anchors, pairs and bits by itself"}
    )

    def __post_init__(self) -> None:
        for name in ("anchors", "pairs", "rounds"):
            _need(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _need(self.threshold >= 0, "threshold", "0 or more", self.threshold)
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)


@dataclass(frozen=True)
class Architecture:
    """What a model on a given codebook may differ in."""

    attend: Literal["tokens", "anchors", "gated"] = field(
        default="gated",
        metadata={"help": "over what: tokens, expanded anchors, or tokens whose context gates their anchors"},
    )
    sat: bool = field(default=True, metadata={"help": "SAT, or its ablation: static composition alone"})
    positions: Literal["grouped", "each", "none"] = field(
        default="grouped", metadata={"help": "grouped (GPE), one each for every anchor, or none"}
    )
    pooling: Literal["attention", "mean"] = field(
        default="attention", metadata={"help": "how a text's vectors become one"}
    )
    heads: int = field(default=0, metadata={"help": "attention heads; 0 for heads of width 64"})
    max_tokens: int = field(default=512, metadata={"help": "tokens a text is cut to"})
    layer_bits: int = field(
        default=8, metadata={"help": "4, 8 or 16: bits of the layers' weights in a model on a packed codebook"}
    )

    def __post_init__(self) -> None:
        _need(self.heads >= 0, "heads", "0 or more", self.heads)
        _need(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        _need(self.layer_bits in (4, 8, 16), "layer_bits", "4, 8 or 16", self.layer_bits)


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained; the presets `PAPER` and `STRONG` are the two sets worth having."""

    epochs: float | None = field(
        default=None,
        metadata={"help": f"passes over the training rows; not given, {EPOCHS}, or with --fit-to-data what suits them"},
    )
    steps: int = field(default=0, metadata={"help": "optimizer steps, instead of epochs"})
    batch_size: int = field(default=64, metadata={"help": "texts a step"})
    learning_rate: float = field(
        default=7e-4, metadata={"help": "highest learning rate, after the warm-up (at 4 classes, with --fit-to-data)"}
    )
    adapt: bool = field(
        default=False, metadata={"help": "move pairs to the tokens whose gradient asks for more; their number stays"}
    )
    lexicon: bool = field(
        default=True, metadata={"help": "add n-gram scores to the model's where validation rows gain by it"}
    )
    class_weights: str = field(
        default="none", metadata={"help": "balanced: classes count alike, however few rows they have"}
    )
    fit_to_data: bool = field(
        default=True,
        metadata={"help": "fit rate, noise and steps to the rows, classes and lengths there are"},
    )
    warmup_steps: int = field(
        default=500, metadata={"help": "steps from 0 to the highest rate (at most a tenth of all)"}
    )
    weight_decay: float = field(default=0.1, metadata={"help": "AdamW's decay, of everything trained"})
    dropout: float = field(default=0.2, metadata={"help": "share of features dropped"})
    token_dropout: float = field(default=0.6, metadata={"help": "largest share of a text's tokens hidden"})
    position_scale: float = field(default=0.1, metadata={"help": "size of the positions beside tokens of size 1"})
    train_anchors: bool = field(default=True, metadata={"help": "let the anchors move"})
    train_weights: bool = field(default=True, metadata={"help": "let the pairs' weights move"})
    seed: int = field(default=0, metadata={"help": "what every random choice follows from"})
    device: str = field(default="auto", metadata={"help": "auto, cpu or cuda"})

    def __post_init__(self) -> None:
        _need(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        _need(self.class_weights in ("none", "balanced"), "class_weights", "none or balanced", self.class_weights)
        for name in ("steps", "warmup_steps", "weight_decay"):
            _need(getattr(self, name) >= 0, name, "0 or more", getattr(self, name))
        _need(self.epochs is None or self.epochs > 0, "epochs", "above 0", self.epochs)
        _need(0 <= self.seed <= MAX_SEED, "seed", f"between 0 and {MAX_SEED}", self.seed)
        _need(self.learning_rate > 0, "learning_rate", "above 0", self.learning_rate)
        for name in ("dropout", "token_dropout"):
            _need(0 <= getattr(self, name) < 1, name, "at least 0 and below 1", getattr(self, name))


@dataclass(frozen=True)
class TeachingSettings:
    """How a fine-tuned encoder teaches (`--distill-from`)."""

    variants: int = field(
        default=-1, metadata={"help": "texts made from each text for the teacher to name; -1 for as many as pay"}
    )
    trust: float = field(default=0.5, metadata={"help": "the teacher's share in the target of a text that has a label"})

    def __post_init__(self) -> None:
        _need(self.variants >= -1, "variants", "0 or more, or -1", self.variants)
        _need(0 <= self.trust <= 1, "trust", "between 0 and 1", self.trust)


@dataclass(frozen=True)
class ServiceSettings:
    """What a service takes, and how it gathers what it is asked."""

    max_bytes: int = field(default=1 << 20, metadata={"help": "bytes of a request's body"})
    max_texts: int = field(default=256, metadata={"help": "texts of a request"})
    max_chars: int = field(default=20_000, metadata={"help": "characters of a text"})
    batch: int = field(default=64, metadata={"help": "texts predicted at once, from however many requests"})
    wait_ms: float = field(
        default=2.0, metadata={"help": "longest wait for more texts, where the last batch had several requests"}
    )
    queue: int = field(default=4096, metadata={"help": "texts that may wait; beyond, requests are turned away"})
    inspect_texts: int = field(default=2, metadata={"help": "texts of a request to look inside"})
    inspect_chars: int = field(default=2_000, metadata={"help": "characters of a text to look inside"})

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_texts", "max_chars", "batch", "inspect_texts", "inspect_chars"):
            _need(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _need(0 <= self.wait_ms <= 1000, "wait_ms", "between 0 and 1000", self.wait_ms)
        _need(self.queue >= self.max_texts, "queue", f"at least max_texts ({self.max_texts})", self.queue)


STRONG = TrainingSettings()
PAPER = TrainingSettings(
    epochs=EPOCHS, batch_size=32, learning_rate=2e-5, warmup_steps=500, weight_decay=0.01,
    fit_to_data=False, dropout=0.1, token_dropout=0.0, position_scale=1.0, train_anchors=True, train_weights=False,
    lexicon=False,
)  # fmt: skip
PRESETS = {"strong": STRONG, "paper": PAPER}
SHAPES = {"strong": Architecture(), "paper": Architecture(attend="tokens")}  # Algorithm 1 as printed
