"""Find the tables of a transformers model, and put packed tables in their place and back again."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ade.compression.head import CodedEmbedding, CodedHead, coded
from ade.compression.table import PackedTable
from ade.errors import InputError

Ties = list[tuple[Any, dict[str, str]]]  # models and the tied weights they declared before


@dataclass(frozen=True)
class Tables:
    """The names of the modules that have a row for every token."""

    input: str  # the input embedding
    head: str | None  # the output layer over the vocabulary, where the model has one
    shared: tuple[str, ...]  # other modules with the same table as the input, the head among them where it is tied

    @property
    def tied(self) -> bool:
        """Whether the head has the table of the input."""
        return self.head in self.shared


def find_tables(model: Any) -> Tables:
    """Return which modules of a model hold its tables; raises InputError where it has no input embedding."""
    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        embedding = None
    name = _name_of(model, embedding)
    if name is None or not isinstance(embedding, nn.Embedding | CodedEmbedding):
        raise InputError(f"{type(model).__name__} has no input embedding to pack")
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if getattr(output, "out_features", None) != embedding.num_embeddings:
        output = None  # some models name a layer before it, as DeBERTa's newer head does
    return Tables(name, _name_of(model, output), modules_sharing(model, name))


def modules_sharing(model: Any, name: str) -> tuple[str, ...]:
    """Return the names of the other modules with the table of this one, by declared ties or by being the same."""
    module, ties = model.get_submodule(name), model.all_tied_weights_keys
    source = ties.get(f"{name}.weight", f"{name}.weight")
    declared = {source, *(target for target, other in ties.items() if other == source)}
    weight = getattr(module, "weight", None)

    found = []
    for other, candidate in model.named_modules(remove_duplicate=False):
        if other == name:
            continue
        if isinstance(module, CodedEmbedding | CodedHead):
            same = isinstance(candidate, CodedEmbedding | CodedHead) and candidate.packed is module.packed
        else:
            same = weight is not None and getattr(candidate, "weight", None) is weight
        if same or (f"{other}.weight" in declared and hasattr(candidate, "weight")):  # some declare what they have not
            found.append(other)
    return tuple(found)


def put_tables(model: Any, tables: Mapping[str, PackedTable], whole: Iterable[str] = ()) -> Ties:
    """Put packed tables in place of modules and of those that share their weights, except the `whole` ones.

    Returns the ties that the model declared before, for `restore_ties`.
    """
    keep = {*tables, *whole}
    made: dict[str, nn.Module] = {}
    for name in sorted(tables, key=lambda name: isinstance(model.get_submodule(name), nn.Linear)):  # embeddings first
        made[name] = coded(tables[name], model.get_submodule(name), name)
        for other in modules_sharing(model, name):
            if other not in keep and other not in made:
                made[other] = coded(tables[name], model.get_submodule(other), other, owned=False)

    ties = _cut_ties(model, {f"{name}.weight" for name in made})
    for name, module in made.items():
        _set_module(model, name, module)
    return ties


@torch.no_grad()
def unpack_tables(model: Any, dtype: torch.dtype | None = None) -> None:
    """Put whole tables, decoded, in place of the packed ones; modules that shared one share its parameter."""
    weights: dict[int, nn.Parameter] = {}
    for name, module in coded_modules(model).items():
        key = id(module.packed)
        if key not in weights:
            weights[key] = module.unpacked(dtype or module.dtype)
        _set_module(model, name, module.dequantized(weights[key]))


def coded_modules(model: Any) -> dict[str, CodedEmbedding | CodedHead]:
    """Return the modules of a model that have a packed table, by name."""
    found = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in found if isinstance(module, CodedEmbedding | CodedHead)}


def owners(model: Any) -> dict[str, CodedEmbedding | CodedHead]:
    """Return the modules that own their packed table, by name."""
    return {name: module for name, module in coded_modules(model).items() if module.owned}


def restore_ties(model: Any, ties: Ties) -> None:
    """Declare the tied weights again that hold."""
    for part, declared in ties:
        part._tied_weights_keys = {t: s for t, s in declared.items() if _same_weight(part, t, s)}
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate whose last parts agree with most of the name's last parts; None if none or several do.

    A model's modules have other prefixes in a checkpoint, or in the same model with another head:
    `bert.embeddings.word_embeddings` is `embeddings.word_embeddings` in `BertModel`.
    """
    scores = {other: _common_end(name, other) for other in candidates}
    best = max(scores.values(), default=0)
    found = [other for other, score in scores.items() if score == best > 0]
    return name if name in found else found[0] if len(found) == 1 else None


def stored_as(model: Any, name: str, candidates: Collection[str]) -> str | None:
    """Return which of a checkpoint's names is that of a module: by its own name, or as transformers renames it."""
    found = closest(name, candidates)
    if found is not None:
        return found
    from transformers.core_model_loading import revert_weight_conversion

    (renamed,) = revert_weight_conversion(model, {f"{name}.weight": torch.empty(0)})  # `embed_out` for GPT-NeoX's head
    return closest(renamed.removesuffix(".weight"), candidates)


def _common_end(name: str, other: str) -> int:
    pairs = zip(reversed(name.split(".")), reversed(other.split(".")), strict=False)
    same = [left == right for left, right in pairs]
    return same.index(False) if False in same else len(same)


def _name_of(model: Any, module: nn.Module | None) -> str | None:
    return next((name for name, other in model.named_modules() if other is module), None) if module else None


def _set_module(model: Any, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _same_weight(model: Any, target: str, source: str) -> bool:
    return model.get_parameter(target) is model.get_parameter(source)


def _cut_ties(model: Any, weights: set[str]) -> Ties:
    """Take weights that are replaced out of every declaration of tied weights in the model and its parts."""
    ties: Ties = []
    for prefix, part in model.named_modules():
        if not hasattr(part, "get_expanded_tied_weights_keys"):
            continue
        declared = part.get_expanded_tied_weights_keys(all_submodels=False)
        before = f"{prefix}." if prefix else ""
        left = {t: s for t, s in declared.items() if not {before + t, before + s} & weights}
        if left != declared:
            ties.append((part, declared))
            part._tied_weights_keys = left
    kept = model.all_tied_weights_keys.items()
    model.all_tied_weights_keys = {t: s for t, s in kept if not {t, s} & weights}
    return ties
