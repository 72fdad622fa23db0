"""Tagged words: CoNLL-style files -> TaggedDataset.

A line holds a word and, in its last column, the word's tag; an empty line ends a sentence.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ade.data.problems import SINGLE
from ade.data.rows import open_text
from ade.data.tables import TAGGED, reading_errors, split_files, suffix_of
from ade.errors import InputError

OUTSIDE = "O"  # the tag of a word outside of any span


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


def is_tagged(source: str | Path, split: str = "train") -> bool:
    """Whether a source is a CoNLL-style file, or a folder with one for this split."""
    path = Path(source)
    return suffix_of(path) in TAGGED if path.is_file() else bool(split_files(path, split, TAGGED))


def load_tagged(source: str | Path, split: str = "train") -> TaggedDataset:
    """Load a split of a folder of CoNLL-style files, or a single file, whatever the split."""
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

    tagged = list(_read_sentences(path))
    if not tagged:
        raise InputError(f"{path}: has no sentence")
    names = tuple(sorted({tag for sentence in tagged for _, tag in sentence}))
    ids = {name: i for i, name in enumerate(names)}
    tags = [np.array([ids[tag] for _, tag in sentence], dtype=np.int64) for sentence in tagged]
    sentences = [tuple(word for word, _ in sentence) for sentence in tagged]
    return TaggedDataset(sentences, tags, names, Path(source).resolve().stem)


def _read_sentences(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Sentences of (word, tag) pairs."""
    with reading_errors(path, "words with tags"), open_text(path) as file:
        lines = [line.strip() for line in file.read().split("\n")]
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
