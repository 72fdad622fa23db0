"""Words with a tag each: CoNLL-style files -> TaggedDataset, and its sentences as token ids with a label a word.

A line holds a word and, in its last column, the word's tag; an empty line ends a sentence. A sentence is read by the
tokenizer as running text, so that a tagger sees tokens as every other model does; a word's tag is its first token's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from tokenizers import Tokenizer

from ade.data.batches import Encoded
from ade.data.problems import SINGLE
from ade.data.rows import opened
from ade.data.tables import TAGGED, reading, split_files, suffix_of
from ade.data.tokenize import encode_chunks
from ade.errors import InputError
from ade.progress import Report, silent

OUTSIDE = "O"  # the tag of a word that is no part of anything
UNLABELLED = -100  # the label of a token that has none, as PyTorch's losses know it


@dataclass(frozen=True)
class TaggedDataset:
    """Sentences of words with a tag each: `names[tags[i][j]]` is the tag of `sentences[i][j]`."""

    sentences: Sequence[tuple[str, ...]]
    tags: Sequence[np.ndarray]  # each (words,) int64
    names: tuple[str, ...]
    name: str = ""  # what people call it
    problem: ClassVar[str] = SINGLE

    def __len__(self) -> int:
        return len(self.sentences)

    def take(self, rows: np.ndarray) -> "TaggedDataset":
        """The given sentences as a data set of their own."""
        return replace(self, sentences=[self.sentences[i] for i in rows], tags=[self.tags[i] for i in rows])

    def split(self, share: float, seed: int) -> tuple["TaggedDataset", "TaggedDataset"]:
        """Two data sets, the second with this share of the sentences: at least one, never all."""
        order = np.random.default_rng(seed).permutation(len(self))
        count = min(max(1, round(share * len(self))), len(self) - 1)
        return self.take(np.sort(order[count:])), self.take(np.sort(order[:count]))

    def relabelled(self, names: Sequence[str]) -> "TaggedDataset":
        """The same with tags counted in another list of names, which must hold every name used here."""
        known = {name: i for i, name in enumerate(names)}
        used = np.unique(np.concatenate(self.tags)) if len(self) else np.empty(0, np.int64)
        unknown = sorted({self.names[i] for i in used} - set(names))
        if unknown:
            raise InputError(f"tags the model was not trained on: {', '.join(unknown[:5])} (it knows {len(names)})")
        place = np.array([known.get(name, -1) for name in self.names], dtype=np.int64)
        return replace(self, tags=[place[tags] for tags in self.tags], names=tuple(names))


def is_tagged(source: str | Path, split: str = "train") -> bool:
    """Whether a source is a CoNLL-style file, or a folder that has one for this split."""
    path = Path(source)
    return suffix_of(path) in TAGGED if path.is_file() else bool(split_files(path, split, TAGGED))


def load_tagged(source: str | Path, split: str = "train") -> TaggedDataset:
    """Load one split of a CoNLL-style file (its only split, whatever is asked) or of a folder of them."""
    path = Path(source)
    if path.is_dir():
        found = split_files(path, split, TAGGED)
        if not found:
            raise InputError(f"{path}: has no {split} file ({', '.join(split + suffix for suffix in TAGGED)})")
        path = found[0]
    if not path.is_file():
        raise InputError(f"{source}: no such file or folder")
    if suffix_of(path) not in TAGGED:
        raise InputError(f"{path}: words with tags come in files called {', '.join(TAGGED)}; rename it if it is one")
    rows = list(_read(path))
    if not rows:
        raise InputError(f"{path}: has no sentence")
    names = tuple(sorted({tag for row in rows for _, tag in row}))
    known = {name: i for i, name in enumerate(names)}
    tags = [np.array([known[tag] for _, tag in row], dtype=np.int64) for row in rows]
    sentences = [tuple(word for word, _ in row) for row in rows]
    return TaggedDataset(sentences, tags, names, Path(source).resolve().stem)


def _read(path: Path) -> Iterator[list[tuple[str, str]]]:
    with reading(path, "words with tags"), opened(path) as file:
        lines = [line.strip() for line in file.read().split("\n")]
    usual = Counter(_form(line) for line in lines if line and not line.startswith("#")).most_common(1)
    sentence: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if not fields or fields[0] == "-DOCSTART-":
            if sentence:
                yield sentence
            sentence = []
        elif line.startswith("#") and not sentence and usual and _form(line) != usual[0][0]:
            continue  # a comment before a sentence: it has not the columns of a word
        elif len(fields) < 2:
            raise InputError(f"{path}, line {number}: a word without a tag; write both, with a space or a tab between")
        else:
            sentence.append((fields[0], fields[-1]))
    if sentence:
        yield sentence


def _fields(line: str) -> list[str]:
    """The columns of a line: between tabs where it has any, else between spaces."""
    return [part.strip() for part in line.split("\t") if part.strip()] if "\t" in line else line.split()


def _form(line: str) -> tuple[bool, int]:
    """How a line is laid out: whether by tabs, and in how many columns."""
    return "\t" in line, len(_fields(line))


def encode_sentences(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int, report: Report = silent
) -> tuple[Encoded, np.ndarray]:
    """Token ids of sentences, and for each token the place of the word it begins in its sentence, -1 for no word."""
    ids: list[int] = []
    words: list[int] = []
    lengths = []
    texts = [" ".join(sentence) for sentence in sentences]
    encodings = chain.from_iterable(encode_chunks(tokenizer, texts, max_length, report, offsets=True))
    for sentence, text, encoding in zip(sentences, texts, encodings, strict=True):
        owners = _owners(sentence, text, encoding.offsets)
        ids.extend(encoding.ids or [0])
        words.extend(owners or [-1])
        lengths.append(len(encoding.ids) or 1)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return Encoded(torch.tensor(ids, dtype=torch.int32), offsets), np.array(words, dtype=np.int64)


def _owners(sentence: Sequence[str], text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The word each token begins, -1 where it goes on with one or belongs to none."""
    ends = np.cumsum([len(word) + 1 for word in sentence]) - 1  # where each word ends in the text
    found, last = [], -1
    for start, end in spans:
        first = start + len(text[start:end]) - len(text[start:end].lstrip())  # a token may begin with a space
        word = int(np.searchsorted(ends, first, side="right")) if first < end else -1
        found.append(word if word > last else -1)
        last = max(last, word)
    return found


def encode_tagged(
    tokenizer: Tokenizer, data: TaggedDataset, max_length: int, report: Report = silent
) -> tuple[Encoded, Encoded]:
    """Token ids of the sentences, and the tag of the word each token begins, laid out alike."""
    texts, words = encode_sentences(tokenizer, data.sentences, max_length, report)
    before = np.repeat(np.cumsum([0, *map(len, data.tags)])[:-1], texts.lengths)  # words of the sentences before
    flat = np.concatenate(data.tags)
    labels = np.where(words >= 0, flat[np.clip(before + words, 0, len(flat) - 1)], UNLABELLED)
    return texts, Encoded(torch.from_numpy(labels.astype(np.int32)), texts.offsets)
