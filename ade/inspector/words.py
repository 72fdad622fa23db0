"""Looking into a model: which anchors a word is made of, which words stand near an anchor, what a context changes."""

import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.tokenize import encode_batch
from ade.errors import InputError

MARKS = "▁Ġ"  # how tokenizers write the space before a word


@dataclass(frozen=True)
class AnchorUse:
    """One pair of a token: an anchor, how much of it, and the words nearest to that anchor."""

    anchor: int
    weight: float
    nearest: tuple[str, ...]
    in_context: float | None = None  # the weight a context leaves it, where one was given


@dataclass(frozen=True)
class TokenAnchors:
    """A token of the word asked for, and its anchors, the heaviest first."""

    word: str
    token: str
    anchors: tuple[AnchorUse, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        uses = [{**asdict(use), "nearest": list(use.nearest)} for use in self.anchors]
        if all(use.in_context is None for use in self.anchors):
            for use in uses:
                del use["in_context"]
        return {"word": self.word, "token": self.token, "anchors": uses}


@dataclass(frozen=True)
class Reading:
    """A text as a model reads it, token by token."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # where each token stands in the text
    static: Tensor  # (L, K): the token's anchors by itself
    contextual: Tensor  # (L, K): the same as its context weighs them
    states: Tensor  # (L, d): what the pooler sees of it
    listening: Tensor  # (L,): its share in the pooled vector


@torch.no_grad()
def read(classifier: Classifier, text: str) -> Reading:
    """What a model that attends over tokens makes of each token of a text; only `gated` weighs anchors anew."""
    model = classifier.model
    if model.config.attend == "anchors":
        raise InputError("the model attends over anchors, not tokens; train one with --attend gated to read with it")
    encoding = encode_batch(classifier.tokenizer, [text], offsets=True)[0]
    ids = torch.tensor([encoding.ids or [0]], device=model.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    states = model.ade.states(ids, mask)[0]
    static = model.ade.embedding.coefficients(ids[0])  # (L, K)
    heard = model.ade.context(ids, mask)
    contextual = static if heard is None else static * model.ade.gates(heard[0])
    listening = model.pooling_weights(states, mask)[0]
    tokens, spans = tuple(encoding.tokens) or ("",), tuple(encoding.offsets) or ((0, 0),)
    tensors = (tensor.cpu() for tensor in (static, contextual, states[0], listening))
    return Reading(tuple(ids[0].tolist()), tokens, spans, *tensors)


def codebook_of(classifier: Classifier) -> Codebook:
    """The dictionary inside a trained classifier, as a codebook."""
    layer, config = classifier.model.ade.embedding, classifier.model.config
    table = layer.table().detach()
    scale = table.norm(dim=1).clamp(min=1e-6)  # (K,): stored anchors have norm one
    types = torch.arange(config.vocab_size, device=table.device)
    parts = [layer.pairs_of(some) for some in types.split(8192)]
    index, weight, there = (torch.cat(part) for part in zip(*parts, strict=True))  # (N, k)
    weights = (weight * scale[index] / config.hidden_size**0.5)[there].detach()
    anchors = table / scale.unsqueeze(1)
    return Codebook.from_pairs(anchors, index[there], weights, there.sum(1), classifier.tokenizer)


def inspect_words(codebook: Codebook, words: list[str], nearest: int = 6) -> list[TokenAnchors]:
    """The anchors of each word's tokens; a word the tokenizer splits has several."""
    tokens = [(word, token) for word in words for token in _tokens_of(codebook, word)]
    pairs = [codebook.pairs_of(token) for _, token in tokens]
    wanted = torch.cat([indices for indices, _ in pairs]).unique()
    around = dict(zip(wanted.tolist(), nearest_words(codebook, wanted, nearest), strict=True))
    found = []
    for (word, token), (indices, weights) in zip(tokens, pairs, strict=True):
        order = weights.abs().argsort(descending=True)
        uses = tuple(AnchorUse(int(indices[i]), float(weights[i]), around[int(indices[i])]) for i in order)
        found.append(TokenAnchors(word, codebook.tokenizer.id_to_token(token) or "", uses))
    return found


def inspect_in_context(classifier: Classifier, words: list[str], text: str, nearest: int = 6) -> list[TokenAnchors]:
    """The anchors of words where they first stand in a text, with the weights the text leaves them."""
    reading, codebook = read(classifier, text), codebook_of(classifier)
    found = []
    for word in words:
        place = re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE)
        if place is None:
            raise InputError(f"'{word}' does not stand in the text")
        own = [i for i, (start, end) in enumerate(reading.spans) if start < place.end() and end > place.start()]
        for i in own:
            indices, weights = codebook.pairs_of(reading.ids[i])
            gate = (reading.contextual[i] / reading.static[i])[indices.long()].nan_to_num(1)  # a weight may be nothing
            around = nearest_words(codebook, indices.long(), nearest)
            order = weights.abs().argsort(descending=True).tolist()
            uses = (
                AnchorUse(int(indices[j]), float(weights[j]), around[j], float(weights[j] * gate[j])) for j in order
            )
            found.append(TokenAnchors(word, reading.tokens[i], tuple(uses)))
    return found


def nearest_words(codebook: Codebook, anchors: Tensor, count: int) -> list[tuple[str, ...]]:
    """For each of these anchors, the whole words whose composed vector points most its way."""
    words = _whole_words(codebook)
    if not words:
        return [() for _ in anchors]
    ids = torch.tensor(sorted(words))
    directions = F.normalize(codebook.anchors[anchors], dim=1)  # (a, d)
    alike, best = torch.empty(len(anchors), 0), torch.empty(len(anchors), 0, dtype=torch.int64)
    for start, rows in codebook.blocks():
        here = ids[(ids >= start) & (ids < start + len(rows))]
        found = directions @ F.normalize(rows[here - start], dim=1).T  # (a, w)
        alike, order = torch.cat([alike, found], 1).topk(min(4 * count, alike.shape[1] + len(here)))
        best = torch.cat([best, here.expand(len(anchors), -1)], 1).gather(1, order)
    return [tuple(dict.fromkeys(words[i].lower() for i in row))[:count] for row in best.tolist()]


def _tokens_of(codebook: Codebook, word: str) -> list[int]:
    encoding = encode_batch(codebook.tokenizer, [word], special=False, offsets=True)[0]
    if not encoding.ids:
        raise InputError(f"'{word}': the tokenizer makes no token of it")
    return [i for i, token in zip(encoding.ids, encoding.tokens, strict=True) if token.strip(MARKS)] or encoding.ids


def _whole_words(codebook: Codebook) -> dict[int, str]:
    """Token id -> word, for tokens a person would call a word."""
    vocabulary = codebook.tokenizer.get_vocab(with_added_tokens=False)
    marked = any(token.startswith(tuple(MARKS)) for token in vocabulary)
    words = {}
    for token, place in vocabulary.items():
        plain = token.strip(MARKS)
        starts = token.startswith(tuple(MARKS)) if marked else not token.startswith("##")
        if starts and len(plain) > 2 and plain.isascii() and plain.isalpha() and place < codebook.vocabulary:
            words[place] = plain
    return words
