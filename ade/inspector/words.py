"""Words and anchors: which anchors a word is composed of, and which words are nearest to an anchor."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.tokenize import encode_batch
from ade.data.words import SPACE_MARKS
from ade.errors import InputError


@dataclass(frozen=True)
class AnchorUse:
    """One (anchor, weight) pair of a token, and the words nearest to the anchor."""

    anchor: int
    weight: float
    nearest: tuple[str, ...]
    in_context: float | None = None  # the weight in a context; None where no context was given


@dataclass(frozen=True)
class TokenAnchors:
    """A token of a word and its anchors, largest weight first."""

    word: str
    token: str
    anchors: tuple[AnchorUse, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; without `in_context` where no context was given."""
        uses = [{**asdict(use), "nearest": list(use.nearest)} for use in self.anchors]
        if all(use.in_context is None for use in self.anchors):
            for use in uses:
                del use["in_context"]
        return {"word": self.word, "token": self.token, "anchors": uses}


def codebook_of(classifier: Classifier) -> Codebook:
    """The dictionary of a trained classifier as a codebook."""
    layer, config = classifier.model.ade.embedding, classifier.model.config
    table = layer.table().detach()
    norms = table.norm(dim=1).clamp(min=1e-6)  # (K,)
    anchors = table / norms.unsqueeze(1)  # a codebook's anchors have norm 1

    ids = torch.arange(config.vocab_size, device=table.device)
    parts = [layer.pairs_of(some) for some in ids.split(8192)]
    index, weight, real = (torch.cat(part) for part in zip(*parts, strict=True))  # (N, k)
    weights = (weight * norms[index] / config.hidden_size**0.5)[real].detach()
    return Codebook.from_pairs(anchors, index[real], weights, real.sum(1), classifier.tokenizer)


def inspect_words(codebook: Codebook, words: list[str], nearest: int = 6) -> list[TokenAnchors]:
    """The anchors of each word's tokens, each with its `nearest` words; a word may be split into several tokens."""
    tokens = [(word, token) for word in words for token in _tokens_of(codebook, word)]
    pairs = [codebook.pairs_of(token) for _, token in tokens]
    used = torch.cat([anchors for anchors, _ in pairs]).unique()
    near = dict(zip(used.tolist(), nearest_words(codebook, used, nearest), strict=True))

    found = []
    for (word, token), (anchors, weights) in zip(tokens, pairs, strict=True):
        order = weights.abs().argsort(descending=True)
        uses = tuple(AnchorUse(int(anchors[i]), float(weights[i]), near[int(anchors[i])]) for i in order)
        found.append(TokenAnchors(word, codebook.tokenizer.id_to_token(token) or "", uses))
    return found


def nearest_words(codebook: Codebook, anchors: Tensor, count: int) -> list[tuple[str, ...]]:
    """For each of these anchors, the `count` whole words whose composed vectors have the highest cosine with it."""
    words = _whole_words(codebook)
    if not words:
        return [() for _ in anchors]

    ids = torch.tensor(sorted(words))
    directions = F.normalize(codebook.anchors[anchors], dim=1)  # (a, d)
    cosines, best = torch.empty(len(anchors), 0), torch.empty(len(anchors), 0, dtype=torch.int64)
    for start, rows in codebook.blocks():
        in_block = ids[(ids >= start) & (ids < start + len(rows))]
        found = directions @ F.normalize(rows[in_block - start], dim=1).T  # (a, w)
        # Four times as many as asked for: spellings that differ only in case count once.
        kept = min(4 * count, cosines.shape[1] + len(in_block))
        cosines, order = torch.cat([cosines, found], 1).topk(kept)
        best = torch.cat([best, in_block.expand(len(anchors), -1)], 1).gather(1, order)
    return [tuple(dict.fromkeys(words[i].lower() for i in row))[:count] for row in best.tolist()]


def _tokens_of(codebook: Codebook, word: str) -> list[int]:
    """Token ids of a word, without those that are only a space."""
    encoding = encode_batch(codebook.tokenizer, [word], special=False, offsets=True)[0]
    if not encoding.ids:
        raise InputError(f"'{word}': the tokenizer makes no token of it")
    return [
        i for i, token in zip(encoding.ids, encoding.tokens, strict=True) if token.strip(SPACE_MARKS)
    ] or encoding.ids


def _whole_words(codebook: Codebook) -> dict[int, str]:
    """Token id -> word, for tokens that begin a word and have three or more ASCII letters and nothing else."""
    vocabulary = codebook.tokenizer.get_vocab(with_added_tokens=False)
    marked = any(token.startswith(tuple(SPACE_MARKS)) for token in vocabulary)
    words = {}
    for token, number in vocabulary.items():
        plain = token.strip(SPACE_MARKS)
        begins_word = token.startswith(tuple(SPACE_MARKS)) if marked else not token.startswith("##")
        if begins_word and len(plain) > 2 and plain.isascii() and plain.isalpha() and number < codebook.vocabulary:
            words[number] = plain
    return words
