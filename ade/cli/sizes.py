"""Bytes of everything prediction needs, one function per kind of model: the model and its tokenizer or vocabulary.

Every function returns `model_bytes` (weights and configuration), `tokenizer_bytes` (what turns text into ids) and their
sum, `bytes`. Model cards and other files that prediction does not read do not count.
"""

from collections.abc import Iterable
from pathlib import Path

from ade.data.tokenizer_file import tokenizer_path

Sizes = dict[str, int]


def sizes(model: int, tokenizer: int) -> Sizes:
    """Both sizes and their sum."""
    return {"bytes": model + tokenizer, "model_bytes": model, "tokenizer_bytes": tokenizer}


def folder_sizes(folder: Path, weights: str = "*.safetensors") -> Sizes:
    """Sizes of a folder written by `ade train`, transformers or model2vec: weights, config.json and tokenizer."""
    files = [*folder.glob(weights), folder / "config.json"]
    return sizes(sum(path.stat().st_size for path in files), tokenizer_path(folder).stat().st_size)


def file_sizes(path: Path) -> Sizes:
    """Sizes of a single file that includes the vocabulary, as fastText's .bin and .ftz."""
    return sizes(path.stat().st_size, 0)


def linear_sizes(numbers: int, vocabulary: Iterable[str]) -> Sizes:
    """Sizes of a linear model over n-grams: `numbers` float32 values, and the n-grams with one byte between them."""
    return sizes(4 * numbers, sum(len(entry.encode("utf8")) + 1 for entry in vocabulary))


def count_parameters(dim: int = 768, labels: int = 4, anchors: int = 100) -> dict[str, int]:
    """The paper's parameter table, counted on a real model; anchors and pairs are frozen, so not in the total."""
    import torch

    from ade.configuration import AdeConfig
    from ade.model import AdeForSequenceClassification

    with torch.device("meta"):  # shapes without memory
        config = AdeConfig(vocab_size=anchors, hidden_size=dim, anchors=anchors, max_pairs=1, num_labels=labels)
        model = AdeForSequenceClassification(config)
    assert model.ade.sat is not None

    parts = {
        "contextualizer": model.ade.sat,
        "layernorm": model.ade.norm,
        "pooler": model.pooler,
        "classifier": model.classifier,
    }
    counts = {name: sum(parameter.numel() for parameter in part.parameters()) for name, part in parts.items()}
    return {**counts, "total_trainable": sum(counts.values()), "anchors_frozen": anchors * dim}
