"""Config: what a model is apart from its arrays, as `config.json` has it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ade.data.problems import PROBLEMS, REGRESSION, SINGLE
from ade.errors import InputError

FORMAT = 4  # of model folders
MODEL_TYPE = "ade"  # by which transformers knows the models
# The kinds of folders; those of models are their class names in PyTorch.
CODEBOOK, CLASSIFIER = "AdeCodebook", "AdeForSequenceClassification"
TAGGER, ENCODER = "AdeForTokenClassification", "AdeForSentenceEmbedding"
KINDS = {
    CLASSIFIER: "a classifier of texts",
    TAGGER: "a tagger, which labels words",
    ENCODER: "an encoder, which turns texts into vectors",
    CODEBOOK: "a codebook without a model",
}
INSTEAD = {  # what to do with a folder of the first kind where the second is needed
    (ENCODER, CLASSIFIER): ": 'ade encode' writes its vectors, 'ade train --from' trains a classifier on it",
    (CODEBOOK, CLASSIFIER): ": 'ade train --from' trains a classifier on it",
    (CLASSIFIER, ENCODER): ", as 'ade distill-encoder' makes it",
    (TAGGER, ENCODER): ", as 'ade distill-encoder' makes it",
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "kind": tuple(KINDS),
    "attend": ("tokens", "anchors"),
    "sat": (True, False),
    "positions": ("grouped", "each", "none"),
    "pooling": ("attention", "mean"),
    "label_type": ("str", "int", "float", "bool"),
    "problem": (None, *PROBLEMS.values()),
    "layer_bits": (0, 4, 8, 16),
}
MAX_SIZE = 1 << 24  # of vectors, heads, texts: far beyond any model
WHOLE = {"heads": (1, MAX_SIZE), "max_tokens": (1, MAX_SIZE), "layers": (1, 24), "output_size": (0, MAX_SIZE)}
NUMBERS = {
    "dropout": (0, 1), "token_dropout": (0, 1), "position_scale": (0, 1e6), "deviation": (0, 1e300),
    "mean": (-1e300, 1e300),
}  # fmt: skip
FEED_FORWARD = 4  # width of a feed-forward block, in widths of the model
EPSILON = 1e-5  # of LayerNorm


@dataclass(frozen=True)
class Config:
    """The settings of a model."""

    kind: str = CLASSIFIER
    labels: tuple[str, ...] = ()  # names, in the order of the scores
    label_type: str = "str"  # in which labels were given: str, int, float, bool
    problem: str | None = None  # what a classifier predicts: one label, any number of them, or a number
    attend: str = "tokens"  # or anchors
    sat: bool = True
    layers: int = 1  # attention layers: SAT, and further ones with feed-forward blocks after it
    positions: str = "grouped"  # one per word (GPE); each: one per anchor; none
    position_scale: float = 1.0
    pooling: str = "attention"  # or mean
    heads: int = 1
    max_tokens: int = 512
    output_size: int = 0  # of an encoder: width of its vectors
    layer_bits: int = 0  # in which the layers' weights are stored; 0 for float32
    mean: float = 0.0  # of a regression's targets, and their standard deviation, to undo standardisation
    deviation: float = 1.0
    dropout: float = 0.0
    token_dropout: float = 0.0  # maximum fraction of tokens dropped per text in training
    class_weights: tuple[float, ...] | None = None  # weight of each class in the loss
    metadata: Mapping[str, Any] = field(default_factory=dict)  # teacher, data and metrics, for the model card

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                names = ", ".join(str(each) for each in allowed if each)
                raise InputError(f"{name} must be one of {names}, not '{getattr(self, name)}'")
        for name, (least, most) in {**WHOLE, **NUMBERS}.items():
            given, kind = getattr(self, name), "whole number" if name in WHOLE else "number"
            is_number = isinstance(given, int if name in WHOLE else int | float) and not isinstance(given, bool)
            if not is_number or not least <= given <= most:  # NaN is in no range
                raise InputError(f"{name} must be a {kind} from {least:,.9g} to {most:,.9g}, not {given!r}")
        if self.kind == ENCODER and self.output_size == 0:
            raise InputError("output_size must be at least 1 for an encoder")
        if self.layers > 1 and (not self.sat or self.attend == "anchors"):
            raise InputError("further layers need SAT, and attention over tokens: not sat false or attend anchors")
        if self.positions == "each" and self.attend != "anchors":
            raise InputError("a position for each anchor needs attention over anchors: attend anchors")
        if self.kind in (CLASSIFIER, TAGGER) and not self.labels:
            raise InputError("a model that predicts labels needs at least one")
        if self.kind == CLASSIFIER and self.problem is None:  # as in transformers
            object.__setattr__(self, "problem", REGRESSION if len(self.labels) == 1 else SINGLE)

    @property
    def outputs(self) -> int:
        """Rows of the last layer: labels, or the width of the vectors."""
        return self.output_size if self.kind == ENCODER else len(self.labels)

    @property
    def pools(self) -> bool:
        """Whether the vectors of a text's tokens become one vector."""
        return self.kind in (CLASSIFIER, ENCODER)

    def layer_shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights after the table, for rows of width `dim`, by name."""
        if self.kind == CODEBOOK:
            return {}
        norms, linears = ["norm"], {"head": (self.outputs, dim)}
        if self.sat:
            linears |= {"sat.projection": (3 * dim, dim), "sat.output": (dim, dim)}
        for i in range(self.layers - 1):
            at = f"layers.{i}."
            norms += [f"{at}attention_norm", f"{at}norm"]
            linears |= {f"{at}sat.projection": (3 * dim, dim), f"{at}sat.output": (dim, dim)}
            linears |= {f"{at}inner": (FEED_FORWARD * dim, dim), f"{at}outer": (dim, FEED_FORWARD * dim)}
        if self.pools:
            linears["pooler"] = (1, dim)

        shapes: dict[str, tuple[int, ...]] = {}
        for name in norms:
            shapes |= {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}
        for name, (outputs, inputs) in linears.items():
            shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
        return shapes

    def as_json(self, vocabulary: int, dim: int, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the contents of `config.json`; `stored` has the sizes of the table and of the lexicon."""
        plain = asdict(self)
        kind, labels, problem = plain.pop("kind"), plain.pop("labels"), plain.pop("problem")
        return {
            "model_type": MODEL_TYPE,
            "format": FORMAT,
            "architectures": [kind],
            "vocab_size": vocabulary,
            "hidden_size": dim,
            "problem_type": problem,
            "id2label": {str(i): name for i, name in enumerate(labels)},
            "label2id": {name: i for i, name in enumerate(labels)},
            **plain,
            **stored,
        }


def config_from_json(given: Mapping[str, Any]) -> Config:
    """Return the settings that `as_json` wrote; raises `InputError` for a format or values that do not fit."""
    if given.get("model_type") != MODEL_TYPE:
        raise InputError(f"not an ADE model (its model_type is {given.get('model_type')})")
    version = given.get("format")
    if version != FORMAT:
        newer = isinstance(version, int) and version > FORMAT
        hint = "install a newer ade" if newer else "train the model again"
        raise InputError(f"its format is {version}, this version of ade reads format {FORMAT}; {hint}")

    chosen = {each.name: given[each.name] for each in fields(Config) if each.name in given}
    names = {int(i): str(name) for i, name in (given.get("id2label") or {}).items()}
    if sorted(names) != list(range(len(names))):
        raise InputError("its id2label does not number the labels from 0 on")
    weights = chosen.get("class_weights")
    chosen["class_weights"] = None if weights is None else tuple(weights)
    kind = (given.get("architectures") or [""])[0]
    labels = tuple(names[i] for i in range(len(names)))
    return Config(**chosen | {"kind": kind, "labels": labels, "problem": given.get("problem_type")})


def check_kind(source: object, kind: str, wanted: str) -> None:
    """Raise `InputError` for a folder of another kind than is wanted."""
    if kind != wanted:
        needed, instead = KINDS[wanted].partition(",")[0], INSTEAD.get((kind, wanted), "")
        raise InputError(f"{source}: {KINDS.get(kind, 'no ADE model')}; {needed} is needed here{instead}")


def default_heads(dim: int) -> int:
    """Return the number of heads: of width 64 where it divides `dim`, else of the largest smaller width that does."""
    return next((dim // width for width in range(min(64, dim), 0, -1) if dim % width == 0), 1)
