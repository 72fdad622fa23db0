"""Words and anchors: which anchors a word is composed of, and which words are nearest to an anchor.

Words are looked up with numpy alone, in a codebook, in a model or an encoder, or in the folder of any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ade.codebook import Codebook, codebook_of
from ade.configuration import CODEBOOK
from ade.data.tokens import SPACE_MARKS, encode_batch
from ade.errors import InputError
from ade.folder import Saved
from ade.trained_model import TrainedModel

NEAREST = 6  # words shown for an anchor
BLOCK = 512  # anchors compared per batch
MIN_WORDS, MAX_COSINES = 2048, 1 << 25  # words compared with each anchor; of anchors with words: a second or two


@dataclass(frozen=True)
class WordTable:
    """The pairs of every token over anchors of norm one, and the tokenizer that makes tokens of words."""

    codebook: Codebook
    tokenizer: Tokenizer

    @classmethod
    def of(cls, source: Saved | TrainedModel | str | Path) -> "WordTable":
        """Rescale the codebook of a model or of a codebook's folder; raises `InputError` where there are no anchors."""
        saved = source.saved if isinstance(source, TrainedModel) else source
        saved = saved if isinstance(saved, Saved) else Saved.read(saved)
        book = codebook_of(saved.table)
        norms = np.maximum(np.linalg.norm(book.anchors, axis=1), 1e-6)  # (K,)
        weights = book.weights * norms[book.indices]
        if saved.config.kind != CODEBOOK:  # the rows of a model have unit variance, those of a codebook norm one
            weights = weights / np.float32(book.dim**0.5)
        return cls(Codebook(book.anchors / norms[:, None], book.indices, weights, book.counts), saved.tokenizer)

    @cached_property
    def words(self) -> dict[int, str]:
        """Token id -> word, for tokens that begin a word and have three or more ASCII letters and nothing else."""
        tokens = self.tokenizer.get_vocab(with_added_tokens=False)
        marked = any(token.startswith(tuple(SPACE_MARKS)) for token in tokens)
        words = {}
        for token, number in tokens.items():
            spelling = token.strip(SPACE_MARKS)
            begins_word = token.startswith(tuple(SPACE_MARKS)) if marked else not token.startswith("##")
            is_word = len(spelling) > 2 and spelling.isascii() and spelling.isalpha()
            if begins_word and is_word and number < self.codebook.vocabulary:
                words[number] = spelling
        return dict(sorted(words.items()))

    def nearest(self, anchors: Sequence[int] | np.ndarray, count: int) -> list[list[str]]:
        """Return for each of these anchors the `count` words whose vectors have the highest cosine with it.

        Many anchors of a large vocabulary are compared with its first words alone: mostly the frequent ones.
        """
        directions = self.codebook.anchors[np.asarray(anchors, np.int64)]  # (a, d)
        ids = np.array(list(self.words), np.int64)[: max(MIN_WORDS, MAX_COSINES // max(1, len(directions)))]
        rows = self.codebook.rows(ids)  # (w, d)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

        nearest = []
        for start in range(0, len(directions), BLOCK):
            cosines = np.round(directions[start : start + BLOCK] @ rows.T, 6)  # (b, w): ties on every processor
            # Four times as many as asked for: spellings that differ only in case count once.
            best = ids[np.argsort(-cosines, axis=1, kind="stable")[:, : 4 * count]]
            for row in best.tolist():
                words = dict.fromkeys(self.words[i].lower() for i in row)
                nearest.append(list(words)[:count])
        return nearest


def inspect_words(
    source: Saved | TrainedModel | str | Path, words: list[str], nearest: int = NEAREST
) -> list[dict[str, Any]]:
    """Return `word`, `token` and `anchors` of each token of words; a word may be split into several tokens.

    Each anchor has its number, its weight and its `nearest` words; those of the largest weight come first. `source` is
    a codebook, a classifier, or the folder of a codebook, a model or an encoder.
    """
    table = WordTable.of(source)
    inspected = []
    for word in words:
        for token in _tokens_of(table.tokenizer, word):
            anchors, weights = table.codebook.of(token)
            near = table.nearest(anchors, nearest)
            order = np.argsort(-np.abs(weights), kind="stable").tolist()
            uses = [{"anchor": int(anchors[i]), "weight": float(weights[i]), "nearest": near[i]} for i in order]
            inspected.append({"word": word, "token": table.tokenizer.id_to_token(token), "anchors": uses})
    return inspected


def count_parameters(saved: Saved) -> dict[str, int]:
    """Return the number of parameters of each component: the paper's table, counted on a model.

    `total` is that of the layers; anchors and pairs (their weights) are the codebook's.
    """
    counts = dict.fromkeys(("contextualizer", "layernorm", "pooler", "classifier"), 0)
    parts = {"sat": "contextualizer", "norm": "layernorm", "pooler": "pooler", "head": "classifier", "layers": "layers"}
    for name, array in saved.layers.items():
        if part := parts.get(name.split(".")[0]):
            counts[part] = counts.get(part, 0) + array.size
    book = codebook_of(saved.table)
    return {**counts, "total": sum(counts.values()), "anchors": book.anchors.size, "pairs": book.weights.size}


def _tokens_of(tokenizer: Tokenizer, word: str) -> list[int]:
    """Return the token ids of a word, without those that are only a space."""
    encoding = encode_batch(tokenizer, [word], special=False, offsets=True)[0]
    if not encoding.ids:
        raise InputError(f"'{word}': the tokenizer makes no token of it")
    spelled = zip(encoding.ids, encoding.tokens, strict=True)
    return [i for i, token in spelled if token.strip(SPACE_MARKS)] or encoding.ids
