"""One text as a trained classifier reads it, token by token: for tables, for the inspector's page, for measurements."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.problems import REGRESSION
from ade.data.tokenize import encode_chunks
from ade.errors import InputError
from ade.inspector.layout import map_vectors
from ade.inspector.words import AnchorUse, TokenAnchors, codebook_of, nearest_words


@dataclass(frozen=True)
class Reading:
    """What a classifier computes for the L tokens of a text, over K anchors and with vectors of width d.

    Of a text with more than `max_tokens` tokens only the first window is kept, and `truncated` is true. Where the
    model attends over anchors, a token's values are the mean over its anchors, and its pooling weight is their sum.
    """

    text: str
    truncated: bool
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # start and end of each token in the text
    static: Tensor  # (L, K): anchor weights of each token without context
    gates: Tensor | None  # (L, K): the factors of `attend="gated"`, between 0 and 2; None without gates
    states: Tensor  # (L, d): contextual vectors, the pooler's input
    pooling_weights: Tensor  # (L,), sum 1
    attention: Tensor | None  # (L, L): mean over the heads, rows sum to 1; None without SAT

    @property
    def contextual(self) -> Tensor:
        """Anchor weights of each token in this context: (L, K)."""
        return self.static if self.gates is None else self.static * self.gates


@torch.no_grad()
def read(classifier: Classifier, text: str) -> Reading:
    """Run a classifier on one text and keep what it computes for each token; an empty text has one empty token."""
    model = classifier.model
    ade, size = model.ade, classifier.max_tokens
    encoding = next(encode_chunks(classifier.tokenizer, [text], classifier.longest, offsets=True))[0]
    ids = torch.tensor([encoding.ids[:size] or [0]], device=model.device)  # (1, L)
    mask = torch.ones_like(ids, dtype=torch.bool)

    states, real = ade.states(ids, mask)
    weights = model.pooling_weights(states, real)[0]
    attention = None if ade.sat is None else ade.sat.attention(*ade.elements(ids, mask))[0].mean(0)
    states = states[0]

    if model.config.attend == "anchors":  # T anchors -> L tokens
        owner = F.one_hot(ade.embedding.expand(ids, mask).word[0], ids.shape[1]).to(states.dtype)  # (T, L)
        mean = (owner / owner.sum(0)).T  # (L, T)
        states, weights = mean @ states, weights @ owner
        attention = None if attention is None else mean @ attention @ owner

    context = ade.context(ids, mask)
    return Reading(
        text=text,
        truncated=len(encoding.ids) > size,
        ids=tuple(ids[0].tolist()),
        tokens=tuple(encoding.tokens[:size]) or ("",),
        spans=tuple(encoding.offsets[:size]) or ((0, 0),),
        static=ade.embedding.coefficients(ids[0]).cpu(),
        gates=None if context is None else ade.gates(context[0]).float().cpu(),
        states=states.cpu(),
        pooling_weights=weights.cpu(),
        attention=None if attention is None else attention.cpu(),
    )


def inspect_in_context(classifier: Classifier, words: list[str], text: str, nearest: int = 6) -> list[TokenAnchors]:
    """The anchors of each word at its first occurrence in a text, with their weights in that context."""
    if classifier.model.config.attend == "anchors":
        raise InputError("the model attends over anchors, not tokens; train one with --attend gated to read with it")
    reading, codebook = read(classifier, text), codebook_of(classifier)
    found = []
    for word in words:
        for i in tokens_of_word(reading, word):
            anchors, weights = codebook.pairs_of(reading.ids[i])
            in_context = weights if reading.gates is None else weights * reading.gates[i, anchors.long()]
            near = nearest_words(codebook, anchors.long(), nearest)
            uses = (
                AnchorUse(int(anchors[j]), float(weights[j]), near[j], float(in_context[j]))
                for j in weights.abs().argsort(descending=True).tolist()
            )
            found.append(TokenAnchors(word, reading.tokens[i], tuple(uses)))
    return found


def tokens_of_word(reading: Reading, word: str) -> list[int]:
    """Positions of the tokens of a word's first occurrence in a text."""
    match = re.search(rf"\b{re.escape(word)}\b", reading.text, re.IGNORECASE)
    if match is None:
        raise InputError(f"'{word}' does not stand in the text")
    found = [i for i, (start, end) in enumerate(reading.spans) if start < match.end() and end > match.start()]
    if not found and reading.truncated:
        raise InputError(f"'{word}' stands after the first {len(reading.ids)} tokens of the text; only those are shown")
    return found


class Inspector:
    """Everything the inspector's page shows of a classifier and of a text, as plain data for JSON.

    The codebook and the map of anchors are computed once: the classifier must not be trained meanwhile.
    """

    def __init__(self, classifier: Classifier, nearest: int = 8) -> None:
        self.classifier = classifier
        self.nearest = nearest  # words listed for each anchor

    def about(self) -> dict[str, Any]:
        """The labels, the sizes, for every anchor its nearest words and its coordinates on the map, and the examples.

        Examples are pairs of sentences that share a word, the one in which the context moves it most clearly first.
        """
        return self._about

    @cached_property
    def codebook(self) -> Codebook:
        """The model's dictionary."""
        return codebook_of(self.classifier)

    @cached_property
    def _about(self) -> dict[str, Any]:
        from ade.inspector.examples import rank_examples  # which reads texts with this module

        book, model = self.codebook, self.classifier.model
        words = nearest_words(book, torch.arange(len(book.anchors)), self.nearest)
        points = map_vectors(book.anchors.numpy()).round(5).tolist()
        stored = model.packed().state_dict().values()
        return {
            "labels": list(self.classifier.names),
            "problem": self.classifier.problem,
            "attend": model.config.attend,
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in stored),
            "vocabulary": book.vocabulary,
            "dim": book.dim,
            "examples": rank_examples(self.classifier),
            "anchors": [{"words": list(near), "x": x, "y": y} for near, (x, y) in zip(words, points, strict=True)],
        }

    def read(self, text: str) -> dict[str, Any]:
        """Prediction, tokens and attention of a text.

        Each token has its pooling weight (`share`) and its anchors with their weights, without and in context. Label,
        probabilities and `explanation` are those of the whole text. Tokens and attention are those of the first
        `max_tokens` tokens; `truncated` says whether there are more.
        """
        reading = read(self.classifier, text)
        shares, attention = reading.pooling_weights.float().tolist(), reading.attention
        tokens = [
            {"token": token, "start": start, "end": end, "share": share, "anchors": self._anchors(reading, i)}
            for i, (token, (start, end), share) in enumerate(zip(reading.tokens, reading.spans, shares, strict=True))
        ]
        return {
            "text": text,
            **self._prediction(text),
            "truncated": reading.truncated,
            "tokens": tokens,
            "attention": None if attention is None else attention.double().numpy().round(6).tolist(),
            "explanation": self.classifier.explain(text).as_dict(),
        }

    def _prediction(self, text: str) -> dict[str, Any]:
        label = self.classifier.predict(text)
        if self.classifier.problem == REGRESSION:
            return {"label": label, "probabilities": {}}
        probabilities = self.classifier.predict_proba(text).tolist()
        return {"label": label, "probabilities": dict(zip(self.classifier.names, probabilities, strict=True))}

    def _anchors(self, reading: Reading, i: int) -> list[dict[str, Any]]:
        """The anchors of token i, largest static weight first."""
        anchors, weights = self.codebook.pairs_of(reading.ids[i])
        in_context = weights if reading.gates is None else weights * reading.gates[i, anchors.long()]
        order = weights.abs().argsort(descending=True, stable=True)
        columns = (part[order].tolist() for part in (anchors, weights, in_context))
        return [
            {"anchor": anchor, "weight": weight, "in_context": here}
            for anchor, weight, here in zip(*columns, strict=True)
        ]
