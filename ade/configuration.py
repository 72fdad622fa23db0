"""AdeConfig: the configuration of a model, as transformers stores it in `config.json`."""

from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import AutoConfig

from ade.config_values import check_config


class AdeConfig(PretrainedConfig):
    """Configuration of a model: the sizes of its codebook, its architecture, dropout, and how it is stored."""

    model_type = "ade"

    def __init__(
        self,
        vocab_size: int = 128100,
        hidden_size: int = 768,
        anchors: int = 500,
        pairs: int | None = None,
        max_pairs: int = 8,
        num_attention_heads: int | None = None,
        attend: str = "gated",
        sat: bool = True,
        layers: int = 1,
        positions: str = "grouped",
        position_scale: float = 1.0,
        pooling: str = "attention",
        max_tokens: int = 512,
        dropout: float = 0.1,
        token_dropout: float = 0.0,
        packing: dict[str, int] | None = None,
        packed: dict[str, Any] | None = None,
        coded: dict[str, Any] | None = None,
        lexicon: dict[str, Any] | None = None,
        output_size: int | None = None,
        class_weights: list[float] | None = None,
        scale: list[float] | None = None,
        label_type: str = "str",
        about: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.anchors = anchors
        self.pairs = vocab_size * max_pairs if pairs is None else pairs  # P, the number of pairs of all tokens
        self.max_pairs = max_pairs
        heads = _default_heads(hidden_size) if num_attention_heads is None else num_attention_heads
        self.num_attention_heads = heads
        self.attend = attend
        self.sat = sat
        self.layers = layers  # attention layers: SAT, and further ones with feed-forward blocks after it
        self.positions = positions  # grouped: one per word (GPE); each: one per anchor; none
        self.position_scale = position_scale
        self.pooling = pooling
        self.max_tokens = max_tokens
        self.dropout = dropout
        self.token_dropout = token_dropout  # maximum fraction of tokens dropped per text in training
        self.packing = packing  # bits the model will be stored in; training rounds its weights to them
        self.packed = packed  # sizes of the packed codebook or coded table; None before packing
        self.coded = coded  # sizes of a table in codes, in place of anchors and pairs
        self.lexicon = lexicon  # sizes of the stored lexicon; None without one
        self.output_size = hidden_size if output_size is None else output_size  # of an encoder: width of its vectors
        self.class_weights = class_weights  # loss weight of each class; None for equal weights
        self.scale = scale  # of a regression: mean and standard deviation of its targets, to undo standardisation
        self.label_type = label_type  # in which labels were given: str, int, float, bool; `id2label` holds names
        self.about = about or {}  # teacher, data and metrics, for the model card

        check_config({**vars(self), "problem_type": kwargs.get("problem_type")})
        super().__init__(**kwargs)


def _default_heads(dim: int) -> int:
    """Number of heads: of width 64 where it divides the dimension, else of the largest smaller width that does."""
    return next((dim // width for width in range(min(64, dim), 0, -1) if dim % width == 0), 1)


AutoConfig.register("ade", AdeConfig)
