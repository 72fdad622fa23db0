"""Tagged words: CoNLL-style files -> `TaggedDataset` -> token ids with a label for the first token of each word.

A line of a file holds a word and, in its last column, the word's tag; an empty line ends a sentence. The words of a
sentence are joined by spaces and tokenized as running text, so that a tagger sees the same tokens as a classifier.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from tokenizers import Encoding, Tokenizer

from ade.data.problems import SINGLE
from ade.data.streams import open_lines
from ade.data.tokens import Ragged, encode_chunks
from ade.errors import InputError

TAGGED = (".conll", ".bio", ".iob", ".iob2")  # suffixes of the files
OUTSIDE = "O"  # the tag of a word outside of any span
UNLABELLED = -100  # the label of tokens without one: `ignore_index` of PyTorch's cross-entropy


@dataclass(frozen=True)
class TaggedDataset:
    """Sentences of words with a tag each: `names[tags[i][j]]` is the tag of `sentences[i][j]`."""

    sentences: Sequence[tuple[str, ...]]
    tags: Sequence[np.ndarray]  # each (words,) int64
    names: tuple[str, ...]
    name: str = ""  # for the model card
    problem: ClassVar[str] = SINGLE

    def __len__(self) -> int:
        return len(self.sentences)

    def take(self, rows: np.ndarray) -> "TaggedDataset":
        """A dataset of the sentences with the given indices."""
        return replace(self, sentences=[self.sentences[i] for i in rows], tags=[self.tags[i] for i in rows])

    def split(self, share: float, seed: int) -> tuple["TaggedDataset", "TaggedDataset"]:
        """Split at random into two datasets, the second with the given share: at least one sentence, not all."""
        order = np.random.default_rng(seed).permutation(len(self))
        count = min(max(1, round(share * len(self))), len(self) - 1)
        return self.take(np.sort(order[count:])), self.take(np.sort(order[:count]))

    def relabelled(self, names: Sequence[str]) -> "TaggedDataset":
        """The same sentences with tag ids of another list of names, which must contain every name used here."""
        ids = {name: i for i, name in enumerate(names)}
        used = np.unique(np.concatenate(self.tags)) if len(self) else np.empty(0, np.int64)
        unknown = sorted({self.names[i] for i in used} - set(names))
        if unknown:
            raise InputError(f"tags the model was not trained on: {', '.join(unknown[:5])} (it knows {len(names)})")
        new_id = np.array([ids.get(name, -1) for name in self.names], dtype=np.int64)
        return replace(self, tags=[new_id[tags] for tags in self.tags], names=tuple(names))


def read_tagged(path: Path) -> TaggedDataset:
    """The tagged sentences of a file."""
    tagged = list(_sentences(path))
    if not tagged:
        raise InputError(f"{path}: has no sentence")
    names = tuple(sorted({tag for sentence in tagged for _, tag in sentence}))
    ids = {name: i for i, name in enumerate(names)}
    tags = [np.array([ids[tag] for _, tag in sentence], dtype=np.int64) for sentence in tagged]
    sentences = [tuple(word for word, _ in sentence) for sentence in tagged]
    return TaggedDataset(sentences, tags, names)


def _sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Sentences of (word, tag) pairs."""
    with open_lines(path, "words with tags") as file:
        lines = [line.strip() for line in file]
    usual = Counter(_line_form(line) for line in lines if line and not line.startswith("#")).most_common(1)

    sentence: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if not fields or fields[0] == "-DOCSTART-":
            if sentence:
                yield sentence
            sentence = []
        elif line.startswith("#") and not sentence and usual and _line_form(line) != usual[0][0]:
            continue  # a comment before a sentence: it does not have the columns of a word
        elif len(fields) < 2:
            raise InputError(f"{path}, line {number}: a word without a tag; write both, with a space or a tab between")
        else:
            sentence.append((fields[0], fields[-1]))
    if sentence:
        yield sentence


def _fields(line: str) -> list[str]:
    """The columns of a line, separated by tabs if it has any, else by spaces."""
    return [part.strip() for part in line.split("\t") if part.strip()] if "\t" in line else line.split()


def _line_form(line: str) -> tuple[bool, int]:
    """Whether a line has tabs, and its number of columns."""
    return "\t" in line, len(_fields(line))


def encode_sentences(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int
) -> tuple[Ragged, np.ndarray]:
    """Token ids of sentences, and for each token the index of the word it is the first token of, else -1."""
    ids, words = [], []
    texts = (" ".join(sentence) for sentence in sentences)
    encodings = chain.from_iterable(encode_chunks(tokenizer, texts, max_length, offsets=True))
    for sentence, encoding in zip(sentences, encodings, strict=True):
        ids.append(encoding.ids or [0])
        words.append(_first_token_words(sentence, encoding))
    return Ragged.of(ids), np.concatenate([np.empty(0, np.int64), *words])


def _first_token_words(sentence: Sequence[str], encoding: Encoding) -> np.ndarray:
    """For each token of a sentence, the index of the word it is the first token of, else -1: (L,)."""
    words = np.full(len(encoding.ids) or 1, -1)
    start = 0
    for number, word in enumerate(sentence):
        tokens = (encoding.char_to_token(at) for at in range(start, start + len(word)))
        first = next((token for token in tokens if token is not None), None)
        if first is not None and words[first] < 0:  # a token may span several words
            words[first] = number
        start += len(word) + 1
    return words


def encode_tagged(tokenizer: Tokenizer, data: TaggedDataset, max_length: int) -> tuple[Ragged, Ragged]:
    """Token ids of the sentences, and labels of the same layout: a word's tag at its first token, else `UNLABELLED`."""
    texts, words = encode_sentences(tokenizer, data.sentences, max_length)
    words_before = np.repeat(np.cumsum([0, *map(len, data.tags)])[:-1], texts.lengths)  # in earlier sentences
    flat = np.concatenate(data.tags)
    labels = np.where(words >= 0, flat[np.clip(words_before + words, 0, len(flat) - 1)], UNLABELLED)
    return texts, Ragged(labels.astype(np.int32), texts.offsets)
