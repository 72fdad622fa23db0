"""Tagger: words in, a tag each out; a model folder in, a model folder out. And how good its tags are."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch

from ade.answers import Tagged
from ade.batching import Encoded, sorted_batches
from ade.errors import InputError
from ade.inference import Stored
from ade.model import AdeForTokenClassification
from ade.predictor import CHUNK
from ade.tagged import TaggedDataset, encode_sentences

OUTSIDE = "O"  # the tag of a word that is no part of anything


class Tagger(Stored[AdeForTokenClassification]):
    """A trained model that gives every word a tag, with its tokenizer."""

    kind = AdeForTokenClassification

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[list[str]]:
        """The tag of each word of each sentence: words as they are given, or as a string has spaces between them.

        Words the model does not see (past its longest text, or none of the tokenizer's) are outside of everything: `O`,
        or the first tag where there is no `O`.
        """
        names = self.names
        return [[names[tag] for tag in tags] for tags in self.tags(sentences)]

    def stream(self, sentences: Iterable[str]) -> Iterator[Tagged]:
        """Words and tags of each sentence of a stream of any length, in order, in flat memory."""
        source = iter(sentences)
        while chunk := [sentence.split() for sentence in islice(source, CHUNK)]:
            yield from map(Tagged, chunk, self.predict(chunk))

    def tags(self, sentences: Sequence[str | Sequence[str]]) -> list[np.ndarray]:
        """The same as numbers of `names`."""
        if isinstance(sentences, str):
            raise InputError("give a list of sentences, each a string or a list of words")
        split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in sentences]
        if not split:
            return []
        texts, words = encode_sentences(self.tokenizer, split, self.max_tokens)
        best = predict_tags(self.model, texts)  # (total,)
        names = self.names
        outside = names.index(OUTSIDE) if OUTSIDE in names else 0
        found = []
        for i, sentence in enumerate(split):
            part = slice(texts.offsets[i], texts.offsets[i + 1])
            tags, own = np.full(len(sentence), outside), words[part]
            tags[own[own >= 0]] = best[part][own >= 0]
            found.append(tags)
        return found


@torch.inference_mode()
def predict_tags(model: AdeForTokenClassification, texts: Encoded) -> np.ndarray:
    """The likeliest tag of every token, in order; the model is put in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    found = np.empty(len(texts.ids), dtype=np.int64)
    for rows in sorted_batches(texts.lengths):
        ids, mask = texts.padded(rows)
        best, real = model(ids, mask).logits.argmax(2).cpu().numpy(), mask.cpu().numpy()  # (B, L)
        for row, own, there in zip(rows, best, real, strict=True):
            found[texts.offsets[row] : texts.offsets[row + 1]] = own[there]
    return found


@dataclass(frozen=True)
class TagEvaluation:
    """The share of right tags; and of the spans that tags like B-PER, I-PER mark, as a whole and by their kind."""

    accuracy: float
    f1: float
    precision: float
    recall: float
    words: int
    spans: int
    best_by: ClassVar[str] = "f1"

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return asdict(self)


def evaluate_tagger(tagger: Tagger, data: TaggedDataset) -> TagEvaluation:
    """Tag every sentence of a data set and compare with its tags."""
    data = data.relabelled(tagger.names)
    if len(data) == 0:
        raise InputError("nothing to evaluate: the data set has no sentences")
    return compare_tags(data.tags, tagger.tags(data.sentences), tagger.names)


def compare_tags(truth: Sequence[np.ndarray], predicted: Sequence[np.ndarray], names: Sequence[str]) -> TagEvaluation:
    """Figures from true and predicted tags; where no tag marks a span, every word is one."""
    real = {(i, span) for i, tags in enumerate(truth) for span in spans([names[tag] for tag in tags])}
    given = {(i, span) for i, tags in enumerate(predicted) for span in spans([names[tag] for tag in tags])}
    hits, words = len(real & given), sum(map(len, truth))
    right = sum(int((one == other).sum()) for one, other in zip(truth, predicted, strict=True))
    return TagEvaluation(
        accuracy=right / max(1, words),
        f1=2 * hits / max(1, len(real) + len(given)),
        precision=hits / max(1, len(given)),
        recall=hits / max(1, len(real)),
        words=words,
        spans=len(real),
    )


def spans(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """(first, after last, kind) of what tags mark: B- begins, I- goes on, E- ends, S- stands alone (or L-, U-).

    A tag without such a mark is a span of its own, O is none. I- after another kind begins a span, too.
    """
    start, kind = 0, None
    for i, tag in enumerate([*tags, OUTSIDE]):
        mark, _, name = tag.partition("-") if tag[1:2] == "-" else ("S" if tag != OUTSIDE else "", "", tag)
        if kind is not None and (mark not in "IEL" or not mark or name != kind):
            yield start, i, kind
            kind = None
        if mark and kind is None:
            start, kind = i, name
        if kind is not None and mark in "ESLU":
            yield start, i + 1, kind
            kind = None
