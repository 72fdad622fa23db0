"""A teacher without the tokens its corpus never uses.

The tokenizer is taken apart as JSON and put together again with the tokens the corpus needs, numbered from 0 in their
old order; the table keeps their rows. To keep every other text encodable as well, all that spells a text in the last
resort stays: added tokens, the unknown token, pieces of one character, bytes, tokens with a character that has no
piece of its own (trained vocabularies have none), and for BPE all that a kept token is merged from. Only WordLevel
has nothing to fall back on: a word it loses is unknown from then on.

Fewer tokens cut the corpus the same way: the longest match (WordPiece), the likeliest path (Unigram) and the first
merge (BPE) are still there, and nothing new competes. What may change is a text with unknown tokens, which fewer
pieces may happen to spell, so the corpus is encoded once more, and where it differs all its pieces stay.
"""

import copy
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from ade.data.tokenize import encode_batch
from ade.errors import InputError
from ade.teachers import Teacher

MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # what a character unknown to sentencepiece falls back on
CHUNK = 4096  # texts encoded at a time
Json = dict[str, Any]


def pruned(teacher: Teacher, texts: Iterable[str]) -> Teacher:
    """The teacher with the tokens these texts need; they are encoded as before, no other gets a new unknown token."""
    corpus = list(texts)
    if not any(text.strip() for text in corpus):
        raise InputError("the corpus to prune the vocabulary by holds no text")
    spec = {**json.loads(teacher.tokenizer.to_str()), "truncation": None, "padding": None}
    if spec["model"]["type"] not in MODELS:
        raise InputError(f"cannot prune a {spec['model']['type']} vocabulary, only {', '.join(MODELS)}")
    whole = Tokenizer.from_str(json.dumps(spec))
    names = whole.get_vocab(with_added_tokens=True)
    if names != teacher.tokenizer.get_vocab(with_added_tokens=True):
        raise InputError(f"{teacher.name}: its tokenizer has other ids once it is saved and loaded")
    if len(set(names.values())) < len(names):
        raise InputError(f"{teacher.name}: its tokenizer has two tokens with the same id")
    before = list(_encoded(whole, corpus))
    kept = _needed(spec).union(*(ids.tolist() for ids in before))
    while True:
        kept |= _parts(spec["model"], kept)
        tokenizer, rows = _rewritten(spec, kept)
        pairs = zip(before, _encoded(tokenizer, corpus), strict=True)
        changed = [corpus[i] for i, (old, new) in enumerate(pairs) if not np.array_equal(rows[new], old)]
        if not changed:
            return Teacher(teacher.name, teacher.table[torch.from_numpy(rows)], tokenizer, teacher.license)
        pieces = _pieces(whole, spec["model"], changed)
        if pieces <= kept:
            raise InputError(f"{teacher.name}: cannot prune, '{changed[0][:40]}' would be cut into other tokens")
        kept |= pieces


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[np.ndarray]:
    for start in range(0, len(texts), CHUNK):
        for encoding in encode_batch(tokenizer, list(texts[start : start + CHUNK]), start):
            yield np.array(encoding.ids, dtype=np.int32)


def _vocabulary(model: Json) -> dict[str, int]:
    """Token -> id, as the model looks it up: of a piece listed twice, Unigram takes the last."""
    if model["type"] == "Unigram":
        return {piece: i for i, (piece, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _ids(model: Json) -> set[int]:
    return set(range(len(model["vocab"])) if model["type"] == "Unigram" else model["vocab"].values())


def _places(spec: Json) -> Iterator[tuple[Any, Any]]:
    """Where an id stands outside the vocabulary: what holds it, and at which key."""
    for token in spec["added_tokens"]:
        yield token, "id"
    if spec["model"].get("unk_id") is not None:
        yield spec["model"], "unk_id"
    yield from _processor_places(spec["post_processor"] or {"type": "none"})


def _processor_places(processor: Json) -> Iterator[tuple[Any, Any]]:
    if processor["type"] == "Sequence":
        for part in processor["processors"]:
            yield from _processor_places(part)
    elif processor["type"] == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            yield from ((token["ids"], i) for i in range(len(token["ids"])))
    elif processor["type"] in ("BertProcessing", "RobertaProcessing"):
        yield from ((processor[name], 1) for name in ("sep", "cls"))


def _needed(spec: Json) -> set[int]:
    """Ids that stay whatever the corpus: those that have a role, and those that spell a text in the last resort."""
    model = spec["model"]
    vocabulary = _vocabulary(model)
    roles = {holder[key] for holder, key in _places(spec)}
    known = _ids(model).union(token["id"] for token in spec["added_tokens"])
    if not roles <= known:
        raise InputError(f"the tokenizer's post-processor adds id {min(roles - known)}, which is no token's")
    fallback = (model.get("unk_token"), *(BYTES if model.get("byte_fallback") else ()))
    last = {vocabulary[token] for token in fallback if token in vocabulary}
    if model["type"] == "Unigram":  # an unknown character costs a little more than the least likely piece
        scores = [score for _, score in model["vocab"]]
        last.add(scores.index(min(scores)))
    for token, number in vocabulary.items():
        letters = _letters(model, token)
        if len(letters) == 1 or (model["type"] != "WordLevel" and not vocabulary.keys() >= set(letters)):
            last.add(number)
    return roles | last


def _letters(model: Json, token: str) -> list[str]:
    """The pieces of one character that spell a token: '##able' is '##a', '##b', '##l', '##e'."""
    prefix = model.get("continuing_subword_prefix") or ""
    suffix = model.get("end_of_word_suffix") or ""
    inner = bool(prefix) and token.startswith(prefix) and token != prefix
    last = bool(suffix) and token.endswith(suffix) and token != suffix
    bare = token[len(prefix) * inner : len(token) - len(suffix) * last]
    letters = [prefix * (inner or i > 0) + letter for i, letter in enumerate(bare)]
    return [*letters[:-1], letters[-1] + suffix * last] if letters else []


def _merges(model: Json) -> list[tuple[str, str, str]]:
    """Left part, right part and result of each merge; a file has them as 'a b' or as ['a', 'b']."""
    skip = len(model.get("continuing_subword_prefix") or "")
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return [(left, right, left + right[skip:]) for left, right in pairs]


def _parts(model: Json, kept: set[int]) -> set[int]:
    """Ids of all that the kept tokens are merged from."""
    if model["type"] != "BPE":
        return set()
    vocabulary = _vocabulary(model)
    ranks = {(left, right): float(rank) for rank, (left, right, _) in enumerate(_merges(model))}
    tokens = (token for token, number in vocabulary.items() if number in kept)
    return {vocabulary[part] for token in tokens for part in _steps(model, token, ranks)}


def _steps(model: Json, token: str, ranks: dict[tuple[str, str], float]) -> list[str]:
    """What BPE makes on the way from letters to a token; nothing where the merges do not lead there.

    The way is the same within a word: a token that comes out of it whole was never merged across its ends.
    """
    skip = len(model.get("continuing_subword_prefix") or "")
    pieces, made = _letters(model, token), []
    while len(pieces) > 1:
        rank, at = min((ranks.get(pair, math.inf), i) for i, pair in enumerate(pairwise(pieces)))
        if rank == math.inf:
            return []
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1][skip:]]
        made.append(pieces[at])
    return made


def _pieces(tokenizer: Tokenizer, model: Json, texts: Iterable[str]) -> set[int]:
    """Ids of all tokens that occur anywhere in these texts: with those kept, the texts must come out as before."""
    words: set[str] = set()
    for text in texts:
        text = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        split = tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else [(text, (0, 0))]
        words.update(word for word, _ in split)
    vocabulary = _vocabulary(model)
    longest = max(map(len, vocabulary))
    prefix = model.get("continuing_subword_prefix") or ""
    found = set()
    for word in words:
        for start in range(len(word)):
            for end in range(start + 1, min(start + longest, len(word)) + 1):
                found |= {word[start:end], prefix + word[start:end]}
    return {vocabulary[piece] for piece in found & vocabulary.keys()}


def _rewritten(spec: Json, kept: set[int]) -> tuple[Tokenizer, np.ndarray]:
    """The tokenizer of the kept ids alone, and for each of its ids the old one."""
    model = spec["model"]
    vocabulary = {token: number for token, number in _vocabulary(model).items() if number in kept}
    inside = sorted(kept & _ids(model))
    rows = [*inside, *sorted(kept - _ids(model))]  # a loaded tokenizer numbers added tokens after the model's
    new = {old: i for i, old in enumerate(rows)}
    fewer: Json = {"vocab": {token: new[number] for token, number in vocabulary.items()}}
    if model["type"] == "Unigram":
        fewer = {"vocab": [model["vocab"][number] for number in inside]}
    elif model["type"] == "BPE":
        merges = zip(model["merges"], _merges(model), strict=True)
        fewer["merges"] = [merge for merge, parts in merges if vocabulary.keys() >= set(parts)]
    spec = {**spec, "model": {**model, **fewer}}
    for part in ("added_tokens", "post_processor"):
        spec[part] = copy.deepcopy(spec[part])
    for holder, key in _places(spec):
        holder[key] = new[holder[key]]
    return Tokenizer.from_str(json.dumps(spec)), np.array(rows, dtype=np.int64)
