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

    anchors: int = field(default=500, metadata={"help": "number of anchors (K)"})
    pairs: int = field(default=8, metadata={"help": "maximum number of (anchor, weight) pairs per token"})
    threshold: float = field(
        default=0.0, metadata={"help": "tau: drop pairs with a smaller weight (embeddings have norm 1)"}
    )
    solver: Literal["pursuit", "gradient"] = field(
        default="pursuit", metadata={"help": "pursuit (orthogonal matching pursuit) or gradient (the paper's)"}
    )
    signed: bool = field(default=True, metadata={"help": "allow negative weights"})
    rounds: int = field(default=12, metadata={"help": "number of rounds over the table"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "device: auto, cpu or cuda"})
    size: str = field(
        default="", metadata={"help": "size budget, as 2MB or 800kB; chooses anchors, pairs and bits to fit"}
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
        metadata={"help": "what attention is over: tokens, expanded anchors, or tokens with gated anchors"},
    )
    sat: bool = field(default=True, metadata={"help": "use SAT; without it, token embeddings do not depend on context"})
    positions: Literal["grouped", "each", "none"] = field(
        default="grouped", metadata={"help": "positional encoding: grouped (GPE), one position per anchor, or none"}
    )
    pooling: Literal["attention", "mean"] = field(
        default="attention", metadata={"help": "how token vectors are pooled into a text vector"}
    )
    heads: int = field(default=0, metadata={"help": "number of attention heads; 0 for heads of width 64"})
    max_tokens: int = field(default=512, metadata={"help": "tokens per window; longer texts are split into windows"})
    layer_bits: int = field(
        default=8, metadata={"help": "bits per weight of the layers on a packed codebook: 4, 8 or 16"}
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
        metadata={
            "help": f"number of epochs; not given, {EPOCHS}, or with --fit-to-data chosen from the number of rows"
        },
    )
    steps: int = field(default=0, metadata={"help": "number of optimizer steps, instead of epochs"})
    batch_size: int = field(default=64, metadata={"help": "texts per optimizer step"})
    learning_rate: float = field(
        default=7e-4, metadata={"help": "peak learning rate; with --fit-to-data, that for 4 classes"}
    )
    adapt: bool = field(
        default=False,
        metadata={"help": "during training, move pairs to tokens with large gradients; their number stays"},
    )
    lexicon: bool = field(
        default=True, metadata={"help": "add a lexicon of n-gram scores if it lowers the validation loss"}
    )
    class_weights: str = field(default="none", metadata={"help": "class weights in the loss: none or balanced"})
    fit_to_data: bool = field(
        default=True,
        metadata={"help": "adapt learning rate, dropout and steps to the dataset's size, classes and text lengths"},
    )
    warmup_steps: int = field(default=500, metadata={"help": "warm-up steps, at most a tenth of all steps"})
    weight_decay: float = field(default=0.1, metadata={"help": "weight decay of AdamW"})
    dropout: float = field(default=0.2, metadata={"help": "dropout probability"})
    token_dropout: float = field(default=0.6, metadata={"help": "maximum fraction of tokens dropped per text"})
    position_scale: float = field(
        default=0.1, metadata={"help": "scale of the positional encoding relative to token vectors"}
    )
    train_anchors: bool = field(default=True, metadata={"help": "train the anchors"})
    train_weights: bool = field(default=True, metadata={"help": "train the weights of the pairs"})
    seed: int = field(default=0, metadata={"help": "random seed"})
    device: str = field(default="auto", metadata={"help": "device: auto, cpu or cuda"})

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
        default=-1, metadata={"help": "augmented texts per training text, labelled by the teacher; -1 chooses a number"}
    )
    trust: float = field(
        default=0.5, metadata={"help": "weight of the teacher's probabilities in the targets of labelled texts"}
    )

    def __post_init__(self) -> None:
        _need(self.variants >= -1, "variants", "0 or more, or -1", self.variants)
        _need(0 <= self.trust <= 1, "trust", "between 0 and 1", self.trust)


@dataclass(frozen=True)
class ServiceSettings:
    """What a service takes, and how it gathers what it is asked."""

    max_bytes: int = field(default=1 << 20, metadata={"help": "maximum size of a request's body in bytes"})
    max_texts: int = field(default=256, metadata={"help": "maximum number of texts per request"})
    max_chars: int = field(default=20_000, metadata={"help": "maximum number of characters per text"})
    batch: int = field(default=64, metadata={"help": "maximum batch size; concurrent requests are batched"})
    wait_ms: float = field(default=2.0, metadata={"help": "maximum time a batch waits for further requests, in ms"})
    queue: int = field(default=4096, metadata={"help": "maximum number of queued texts; further requests are refused"})
    inspect_texts: int = field(default=2, metadata={"help": "maximum number of texts per inspection request"})
    inspect_chars: int = field(default=2_000, metadata={"help": "maximum number of characters per inspected text"})

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
