"""Prune a vocabulary to the tokens a corpus uses.

The tokenizer is read as JSON and written again with the tokens the corpus needs, numbered from 0 in their old order;
a table keeps their rows. To keep every other text encodable, tokens that any text may need stay as well: added
tokens, the unknown token, tokens of one character, bytes, tokens with a character that has no token of its own (trained
vocabularies have none), and for BPE all tokens that a kept one is merged from. Only WordLevel has no such fallback: a
word it loses is unknown from then on.

With fewer tokens the corpus is encoded as before: the longest match (WordPiece), the likeliest path (Unigram) and the
first merge (BPE) are still there, and no new candidate appears. The exception is a text with unknown tokens, parts of
which may now match. So the corpus is encoded again, and where a text differs all tokens that occur in it stay.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ade.data.tokens import CHUNK, encode_batch
from ade.errors import InputError

SUPPORTED = ("WordPiece", "BPE", "Unigram", "WordLevel")
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))  # sentencepiece spells unknown characters with them
Json = dict[str, Any]


def pruned(tokenizer: Tokenizer, texts: Iterable[str], min_count: int = 1) -> tuple[Tokenizer, np.ndarray]:
    """Return a tokenizer with only the tokens these texts need, and the old id of each of its own.

    The texts are encoded as before, and no other text gets an unknown token it did not have (except with WordLevel).
    With a `min_count` above 1, tokens that occur fewer times in the texts are dropped, too; they are then split into
    others.
    """
    corpus = list(texts)
    if not any(text.strip() for text in corpus):
        raise InputError("the corpus to prune the vocabulary by holds no text")
    spec, original = without_truncation(tokenizer)

    before = list(encoded(original, corpus))
    used, counts = np.unique(np.concatenate(before), return_counts=True)
    kept = _always_kept(spec).union(used[counts >= min_count].tolist())
    while True:
        kept |= _merge_parts(spec["model"], kept)
        smaller, rows = rewritten(spec, kept)
        if min_count > 1:  # texts are meant to change
            return smaller, rows
        ids = zip(corpus, before, encoded(smaller, corpus), strict=True)
        changed = [text for text, old, new in ids if not np.array_equal(rows[new], old)]
        if not changed:
            return smaller, rows
        occurring = _occurring(original, spec["model"], changed)
        if occurring <= kept:
            raise InputError(f"cannot prune the vocabulary, '{changed[0][:40]}' would be split into other tokens")
        kept |= occurring


def without_truncation(tokenizer: Tokenizer) -> tuple[Json, Tokenizer]:
    """The tokenizer without truncation and padding, as JSON and as it is; raises for one of another kind."""
    spec = {**json.loads(tokenizer.to_str()), "truncation": None, "padding": None}
    if spec["model"]["type"] not in SUPPORTED:
        raise InputError(f"cannot prune a {spec['model']['type']} vocabulary, only {', '.join(SUPPORTED)}")
    if spec["model"].get("end_of_word_suffix"):
        raise InputError("cannot prune a vocabulary that marks the ends of words, as with </w>")
    original = Tokenizer.from_str(json.dumps(spec))
    names = original.get_vocab(with_added_tokens=True)
    if names != tokenizer.get_vocab(with_added_tokens=True):
        raise InputError("the tokenizer has other ids after saving and loading")
    if len(set(names.values())) < len(names):
        raise InputError("the tokenizer has two tokens with the same id")
    return spec, original


def encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[np.ndarray]:
    """Token ids of each text."""
    for start in range(0, len(texts), CHUNK):
        for encoding in encode_batch(tokenizer, list(texts[start : start + CHUNK])):
            yield np.array(encoding.ids, dtype=np.int32)


def _vocabulary(model: Json) -> dict[str, int]:
    """Token -> id. Unigram may list a token twice; the tokenizer uses the last."""
    if model["type"] == "Unigram":
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _ids(model: Json) -> set[int]:
    """Every id of the vocabulary."""
    return set(range(len(model["vocab"])) if model["type"] == "Unigram" else model["vocab"].values())


def _references(spec: Json) -> Iterator[tuple[Any, Any]]:
    """Where an id occurs outside the vocabulary: the container, and the key or index in it."""
    for token in spec["added_tokens"]:
        yield token, "id"
    if spec["model"].get("unk_id") is not None:
        yield spec["model"], "unk_id"
    yield from _processor_references(spec["post_processor"] or {"type": "none"})


def _processor_references(processor: Json) -> Iterator[tuple[Any, Any]]:
    """`_references` within a post-processor."""
    if processor["type"] == "Sequence":
        for part in processor["processors"]:
            yield from _processor_references(part)
    elif processor["type"] == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            yield from ((token["ids"], i) for i in range(len(token["ids"])))
    elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
        yield from ((processor[name], 1) for name in ("sep", "cls"))


def _always_kept(spec: Json) -> set[int]:
    """Ids that stay whatever the corpus: those used outside the vocabulary, and those that any text may need."""
    model = spec["model"]
    vocabulary = _vocabulary(model)
    referenced = {holder[key] for holder, key in _references(spec)}
    known = _ids(model).union(token["id"] for token in spec["added_tokens"])
    if not referenced <= known:
        raise InputError(f"the tokenizer's post-processor adds id {min(referenced - known)}, which no token has")

    fallback_tokens = [model.get("unk_token"), *(BYTE_TOKENS if model.get("byte_fallback") else ())]
    fallback = {vocabulary[token] for token in fallback_tokens if token in vocabulary}
    if model["type"] == "Unigram":  # the score of an unknown character is derived from the lowest score
        scores = [score for _, score in model["vocab"]]
        fallback.add(scores.index(min(scores)))

    for token, number in vocabulary.items():
        characters = _characters(model, token)
        spelled = all(character in vocabulary for character in characters)
        if len(characters) == 1 or (model["type"] != "WordLevel" and not spelled):
            fallback.add(number)
    return referenced | fallback


def _prefix(model: Json) -> str:
    """What marks a token that continues a word, such as '##'; empty where nothing does."""
    return model.get("continuing_subword_prefix") or ""


def _characters(model: Json, token: str) -> list[str]:
    """The tokens of one character that spell a token: '##able' is '##a', '##b', '##l', '##e'."""
    prefix = _prefix(model)
    if token.startswith(prefix) and token != prefix:
        return [prefix + character for character in token[len(prefix) :]]
    return [token[:1], *(prefix + character for character in token[1:])]


def _merge(model: Json, left: str, right: str) -> str:
    """The token two neighbours are merged into: 'a' and '##b' become 'ab'."""
    return left + right[len(_prefix(model)) :]


def _merge_parts(model: Json, kept: set[int]) -> set[int]:
    """Ids of all tokens that the kept ones are merged from; none for a model without merges."""
    if model["type"] != "BPE":
        return set()
    vocabulary = _vocabulary(model)
    ranks = {(left, right): float(rank) for rank, (left, right) in enumerate(model["merges"])}
    tokens = (token for token, number in vocabulary.items() if number in kept)
    return {vocabulary[part] for token in tokens for part in _merge_steps(model, token, ranks)}


def _merge_steps(model: Json, token: str, ranks: dict[tuple[str, str], float]) -> list[str]:
    """The tokens BPE makes on the way from characters to a token; none where the merges do not lead to it.

    The steps are the same inside a word: where a token comes out whole, nothing was merged across its ends.
    """
    parts, made = _characters(model, token), []
    while len(parts) > 1:
        rank, i = min((ranks.get(neighbours, math.inf), i) for i, neighbours in enumerate(pairwise(parts)))
        if rank == math.inf:
            return []
        merged = _merge(model, parts[i], parts[i + 1])
        parts[i : i + 2] = [merged]
        made.append(merged)
    return made


def _occurring(tokenizer: Tokenizer, model: Json, texts: Iterable[str]) -> set[int]:
    """Ids of all tokens that occur anywhere in these texts: with those kept, the texts must be encoded as before."""
    words: set[str] = set()
    for text in texts:
        text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        split = tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else [(text, (0, 0))]
        words.update(word for word, _ in split)
    spelled, prefix = "\n".join(words), _prefix(model)
    return {number for token, number in _vocabulary(model).items() if token.removeprefix(prefix) in spelled}


def rewritten(spec: Json, kept: set[int], key: Callable[[int], Any] | None = None) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer with only the kept ids, in their old order or sorted by `key`, and the old id of each new one."""
    model = spec["model"]
    vocabulary = {token: number for token, number in _vocabulary(model).items() if number in kept}
    in_model = sorted(kept & _ids(model), key=key)
    old_ids = [*in_model, *sorted(kept - _ids(model))]  # a loaded tokenizer numbers added tokens after the model's
    new_id = {old: new for new, old in enumerate(old_ids)}

    pruned_model: Json = {**model, "vocab": {token: new_id[number] for token, number in vocabulary.items()}}
    if model["type"] == "Unigram":
        pruned_model["vocab"] = [model["vocab"][number] for number in in_model]
    elif model["type"] == "BPE":
        merges = [merge for merge in model["merges"] if {*merge, _merge(model, *merge)} <= vocabulary.keys()]
        pruned_model["merges"] = merges

    spec = {**spec, "model": pruned_model}
    for part in ("added_tokens", "post_processor"):
        spec[part] = copy.deepcopy(spec[part])  # changed below
    for holder, key in _references(spec):
        holder[key] = new_id[holder[key]]
    return Tokenizer.from_str(json.dumps(spec)), np.array(old_ids, dtype=np.int64)
