"""Find the tables of a transformers model, and put coded tables in their place."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from ade.coded_layer import PackedTable
from ade.compression.head import Packed, packed_module
from ade.compression.outputs import body_of, hidden_states, hooked, padded
from ade.errors import InputError


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

    @property
    def output(self) -> str | None:
        """The module whose table scores are computed with."""
        return self.input if self.tied else self.head


def find_tables(model: Any) -> Tables:
    """Return which modules of a model hold its tables; raises InputError where it has no input embedding."""
    try:
        embedding = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        embedding = None
    names = {id(module): name for name, module in model.named_modules()}
    name = names.get(id(embedding))
    if name is None or not isinstance(embedding, nn.Embedding):
        raise InputError(f"{type(model).__name__} has no input embedding to pack")
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if getattr(output, "out_features", None) != embedding.num_embeddings:
        output = None  # some models name a layer before it, as DeBERTa's newer head does
    return Tables(name, names.get(id(output)), modules_sharing(model, name))


@torch.inference_mode()
def tables_beside(model: Any) -> dict[str, int]:
    """Return the embeddings beside the input that token ids are looked up in, and how long the rows to code are.

    The model is run once to see which ids each embedding is given: positions and kinds of tokens are no token ids. A
    table that has every layer's input for each token is coded in slices of one layer.
    """
    ids = [7, 3, 5, 4, 6]
    readers: dict[nn.Module, None] = {}

    def seen(module: nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        if inputs and inputs[0].flatten().tolist() == ids:
            readers[module] = None

    # Older releases of transformers give token ids to position tables, too, which read their number alone.
    tables_of = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    tables_of = [module for module in tables_of if "position" not in type(module).__name__.lower()]
    with hooked(dict.fromkeys(tables_of, seen)):
        hidden_states(body_of(model), *padded([ids], model.device))

    tables = find_tables(model)
    length = getattr(model.config.get_text_config(), "hidden_size_per_layer_input", None)
    beside = {}
    for name, module in model.named_modules():
        if module in readers and name not in (tables.input, *tables.shared):
            dim = module.embedding_dim
            beside[name] = length if length and dim % length == 0 else dim
    return beside


def modules_sharing(model: Any, name: str) -> tuple[str, ...]:
    """Return the names of the other modules with the table of this one, by declared ties or by being the same."""
    module = model.get_submodule(name)
    ties = model.all_tied_weights_keys
    source = ties.get(f"{name}.weight", f"{name}.weight")
    declared = {source, *(target for target, other in ties.items() if other == source)}

    names = []
    for other, candidate in model.named_modules(remove_duplicate=False):
        table = getattr(candidate, "weight", None)  # some declare what they have not
        if other != name and table is not None and (table is module.weight or f"{other}.weight" in declared):
            names.append(other)
    return tuple(names)


def put_tables(model: Any, tables: Mapping[str, PackedTable], whole: Iterable[str] = ()) -> None:
    """Put coded tables in place of modules and of those that share their weights, except the `whole` ones."""
    keep = {*tables, *whole}
    made: dict[str, nn.Module] = {}
    for name in sorted(tables, key=lambda name: isinstance(model.get_submodule(name), nn.Linear)):  # embeddings first
        made[name] = packed_module(tables[name], model.get_submodule(name), name)
        for other in modules_sharing(model, name):
            if other not in keep and other not in made:
                made[other] = packed_module(tables[name], model.get_submodule(other), other, owned=False)

    # Weights that are replaced are taken out of every declaration of tied weights in the model and its parts.
    weights = {f"{name}.weight" for name in made}
    for prefix, part in model.named_modules():
        if hasattr(part, "get_expanded_tied_weights_keys"):
            declared = part.get_expanded_tied_weights_keys(all_submodels=False)
            before = f"{prefix}." if prefix else ""
            left = {t: s for t, s in declared.items() if not {before + t, before + s} & weights}
            if left != declared:
                part._tied_weights_keys = left
    kept = model.all_tied_weights_keys.items()
    model.all_tied_weights_keys = {t: s for t, s in kept if not {t, s} & weights}

    for name, module in made.items():
        model.set_submodule(name, module)


def packed_modules(model: Any) -> dict[str, Packed]:
    """Return the modules of a model that have a coded table, by name."""
    modules = model.named_modules(remove_duplicate=False)
    return {name: module for name, module in modules if isinstance(module, Packed)}


def owners(model: Any) -> dict[str, Packed]:
    """Return the modules that own their coded table, by name."""
    return {name: module for name, module in packed_modules(model).items() if module.owned}


def closest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate whose last parts agree with most of the name's last parts; None if none or several do.

    A model's modules have other prefixes in a checkpoint, or in the same model with another head:
    `bert.embeddings.word_embeddings` is `embeddings.word_embeddings` in `BertModel`.
    """

    def agreeing(other: str) -> int:
        pairs = zip(reversed(name.split(".")), reversed(other.split(".")), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))

    counts = {other: agreeing(other) for other in candidates}
    most = max(counts.values(), default=0)
    best = [other for other, count in counts.items() if count == most > 0]
    if name in best:
        return name
    return best[0] if len(best) == 1 else None


def stored_as(model: Any, name: str, candidates: Collection[str]) -> str | None:
    """Return which of a checkpoint's names is that of a module: by its own name, or as transformers renames it."""
    if (own := closest(name, candidates)) is not None:
        return own
    from transformers.core_model_loading import revert_weight_conversion

    (renamed,) = revert_weight_conversion(model, {f"{name}.weight": torch.empty(0)})  # `embed_out` for GPT-NeoX's head
    return closest(renamed.removesuffix(".weight"), candidates)
