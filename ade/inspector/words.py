"""Words and anchors: which anchors a word is composed of, and which words are nearest to an anchor.

Words are looked up with numpy alone, in a `Codebook`, in a model or an encoder, or in the folder of any.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from ade.data.problems import ENCODER
from ade.data.tokenize import encode_batch
from ade.data.words import SPACE_MARKS
from ade.errors import InputError
from ade.files import kind_of
from ade.packing.coded import TABLE_FILE
from ade.packing.pairs import Pairs
from ade.runtime.encoder import RuntimeEncoder
from ade.runtime.runtime import Runtime

if TYPE_CHECKING:
    from ade.classifier import Classifier
    from ade.codebook import Codebook

CODEBOOK = "codebook.json"  # a folder with this file is a codebook
BLOCK = 8192  # tokens composed at a time


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


@dataclass(frozen=True)
class Dictionary:
    """Anchors of norm one, and the pairs of every token, one token after the other."""

    anchors: np.ndarray  # (K, d) float32
    indices: np.ndarray  # (P,): which anchor
    weights: np.ndarray  # (P,) float32: how much of it
    offsets: np.ndarray  # (N + 1,): token i has the pairs from offsets[i] up to offsets[i + 1]
    tokenizer: Tokenizer

    @property
    def vocabulary(self) -> int:
        """N, the number of tokens."""
        return len(self.offsets) - 1

    def pairs_of(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """The anchor indices and weights of one token."""
        own = slice(self.offsets[token], self.offsets[token + 1])
        return self.indices[own], self.weights[own]

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the composed rows of all tokens in blocks, each with its first token."""
        for start in range(0, self.vocabulary, BLOCK):
            offsets = self.offsets[start : start + BLOCK + 1]
            own = slice(offsets[0], offsets[-1])
            parts = self.anchors[self.indices[own]] * self.weights[own, None]
            yield start, np.add.reduceat(parts, offsets[:-1] - offsets[0])

    @classmethod
    def of(cls, source: "Dictionary | Codebook | Runtime | RuntimeEncoder | Classifier") -> "Dictionary":
        """The dictionary of a codebook or a model."""
        if isinstance(source, cls):
            return source
        if isinstance(source, Runtime):
            return cls._of_tables(source.projection.tables.pairs, source.tokenizer)
        if isinstance(source, RuntimeEncoder):
            return cls._of_tables(source.projection.projection.tables.pairs, source.tokenizer)
        book: Any = source
        book = codebook_of(book) if hasattr(book, "model") else book
        anchors, indices, weights, offsets = book.anchors, book.indices, book.weights, book.offsets
        return cls(anchors.numpy(), indices.numpy(), weights.numpy(), offsets.numpy(), book.tokenizer)

    @classmethod
    def _of_tables(cls, pairs: Pairs, tokenizer: Tokenizer) -> "Dictionary":
        table = pairs.anchors()
        norms = np.maximum(np.linalg.norm(table, axis=1), 1e-6)  # (K,)
        types = np.array_split(np.arange(pairs.vocabulary), max(1, pairs.vocabulary // BLOCK))
        found = [pairs.of(some) for some in types]
        index, weight = (np.concatenate([part[i][part[2]] for part in found]) for i in (0, 1))
        counts = np.concatenate([part[2].sum(1) for part in found])
        weight = weight * norms[index] / np.float32(table.shape[1] ** 0.5)
        return cls(table / norms[:, None], index, weight, np.append(0, np.cumsum(counts)), tokenizer)

    @classmethod
    def load(cls, folder: str | Path) -> "Dictionary":
        """The dictionary of the folder of a codebook, a model or an encoder; that of a codebook needs torch."""
        if (Path(folder) / TABLE_FILE).exists():
            raise InputError(
                f"{folder}: a table in codes has no anchors to show; 'ade distill' without --codes makes some"
            )
        if (Path(folder) / CODEBOOK).exists():
            from ade.codebook import Codebook

            return cls.of(Codebook.load(folder))
        return cls.of(RuntimeEncoder.load(folder) if kind_of(folder) == ENCODER else Runtime.load(folder))


def codebook_of(classifier: "Classifier") -> "Codebook":
    """The dictionary of a trained classifier as a codebook."""
    import torch

    from ade.codebook import Codebook

    layer, config = classifier.model.ade.embedding, classifier.model.config
    table = layer.table().detach()
    norms = table.norm(dim=1).clamp(min=1e-6)  # (K,)
    anchors = table / norms.unsqueeze(1)  # a codebook's anchors have norm 1

    ids = torch.arange(config.vocab_size, device=table.device)
    parts = [layer.pairs_of(some) for some in ids.split(8192)]
    index, weight, real = (torch.cat(part) for part in zip(*parts, strict=True))  # (N, k)
    weights = (weight * norms[index] / config.hidden_size**0.5)[real].detach()
    return Codebook.from_pairs(anchors, index[real], weights, real.sum(1), classifier.tokenizer)


def inspect_words(
    source: "Dictionary | Codebook | Runtime | Classifier", words: list[str], nearest: int = 6
) -> list[TokenAnchors]:
    """The anchors of each word's tokens, each with its `nearest` words; a word may be split into several tokens."""
    book = Dictionary.of(source)
    tokens = [(word, token) for word in words for token in _tokens_of(book, word)]
    pairs = [book.pairs_of(token) for _, token in tokens]
    used = np.unique(np.concatenate([anchors for anchors, _ in pairs]))
    near = dict(zip(used.tolist(), nearest_words(book, used, nearest), strict=True))

    found = []
    for (word, token), (anchors, weights) in zip(tokens, pairs, strict=True):
        order = np.argsort(-np.abs(weights), kind="stable")
        uses = tuple(AnchorUse(int(anchors[i]), float(weights[i]), near[int(anchors[i])]) for i in order)
        found.append(TokenAnchors(word, book.tokenizer.id_to_token(token) or "", uses))
    return found


def nearest_words(
    source: "Dictionary | Codebook | Runtime | Classifier", anchors: Any, count: int
) -> list[tuple[str, ...]]:
    """For each of these anchors, the `count` whole words whose composed vectors have the highest cosine with it."""
    book = Dictionary.of(source)
    words, anchors = _whole_words(book), np.asarray(anchors)
    if not words:
        return [() for _ in anchors]

    ids = np.array(sorted(words))
    directions = _normalised(book.anchors[anchors])  # (a, d)
    cosines, best = np.empty((len(anchors), 0), np.float32), np.empty((len(anchors), 0), np.int64)
    for start, rows in book.blocks():
        in_block = ids[(ids >= start) & (ids < start + len(rows))]
        cosines = np.hstack([cosines, directions @ _normalised(rows[in_block - start]).T])  # (a, w)
        best = np.hstack([best, np.broadcast_to(in_block, (len(anchors), len(in_block)))])
        # Four times as many as asked for: spellings that differ only in case count once.
        order = np.argsort(-cosines, axis=1, kind="stable")[:, : 4 * count]
        cosines, best = np.take_along_axis(cosines, order, 1), np.take_along_axis(best, order, 1)
    return [tuple(dict.fromkeys(words[i].lower() for i in row))[:count] for row in best.tolist()]


def _normalised(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _tokens_of(codebook: Dictionary, word: str) -> list[int]:
    """Token ids of a word, without those that are only a space."""
    encoding = encode_batch(codebook.tokenizer, [word], special=False, offsets=True)[0]
    if not encoding.ids:
        raise InputError(f"'{word}': the tokenizer makes no token of it")
    return [
        i for i, token in zip(encoding.ids, encoding.tokens, strict=True) if token.strip(SPACE_MARKS)
    ] or encoding.ids


def _whole_words(codebook: Dictionary) -> dict[int, str]:
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
