"""Tagger: words in, a tag for each of them out."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from ade.configuration import TAGGER
from ade.data.records import given_texts
from ade.data.tags import OUTSIDE, encode_sentences
from ade.data.tokens import CHUNK, Ragged
from ade.decision import Tagged
from ade.errors import InputError
from ade.trained_model import TrainedModel


class Tagger(TrainedModel):
    """A trained model that predicts a tag for every word."""

    kind = TAGGER

    @property
    def labels(self) -> tuple[str, ...]:
        """The tags, in the order of scores."""
        return self.saved.config.labels

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[list[str]]:
        """Predict the tag of each word of each sentence; a sentence is a list of words, or a string split at spaces.

        Words without a token (beyond the truncation, or unknown to the tokenizer) get the tag `O`, or the first tag
        where there is no `O`.
        """
        return [[self.labels[tag] for tag in tags] for tags in self.tags(sentences)]

    def stream(self, sentences: Iterable[str]) -> Iterator[Tagged]:
        """Yield words and tags of each sentence of an iterable, in order; only a chunk is held in memory."""
        source = iter(given_texts(sentences))
        while chunk := [sentence.split() for sentence in islice(source, CHUNK)]:
            yield from map(Tagged, chunk, self.predict(chunk))

    def tags(self, sentences: Sequence[str | Sequence[str]]) -> list[np.ndarray]:
        """Predict tags as `predict` does, but return their numbers in `labels`."""
        if isinstance(sentences, str):
            raise InputError("give a list of sentences, each a string or a list of words")
        given = given_texts(sentences)
        split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in given]
        if not split:
            return []
        texts, words = encode_sentences(self.tokenizer, split, self.max_tokens)
        return tags_of_words(self.backend.token_scores(texts)[1], texts, words, split, self.labels)


def tags_of_words(
    scores: np.ndarray, texts: Ragged, words: np.ndarray, sentences: Sequence[Sequence[str]], names: Sequence[str]
) -> list[np.ndarray]:
    """Return the number of the tag of each word of sentences, from the scores (T, C) of their tokens.

    `words` (T,) has the word that a token stands for, -1 for none. A word without a token has the tag `O`, or the first
    tag where there is no `O`.
    """
    best, outside = scores.argmax(1), list(names).index(OUTSIDE) if OUTSIDE in names else 0
    predicted = []
    for i, sentence in enumerate(sentences):
        tokens = slice(texts.offsets[i], texts.offsets[i + 1])
        word, tag = words[tokens], best[tokens]
        tags = np.full(len(sentence), outside)
        tags[word[word >= 0]] = tag[word >= 0]
        predicted.append(tags)
    return predicted
