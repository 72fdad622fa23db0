"""One text as a trained classifier reads it, token by token, and what each anchor of a word adds to the decision.

The contribution of token t to the scores is p_t W h_t: its pooling weight, the head and the token in context. With the
attention weights alpha and the deviation sigma of LayerNorm as they are in this text, h_t is linear in the anchors of
all tokens. With M_h = W Wo_h Wv_h for each attention head and R_t = p_t (W + sum_h alpha_tt M_h)

    p_t W h_t = sum_k beta_k R_t g (a_k - mean a_k) / sigma_t       what each anchor of the token adds
              + p_t sum_h sum_{j != t} alpha_tj M_h x_j             what other tokens add, by attention
              + R_t (b + position_t) + p_t W (Wo bv + bo)           what its position and the biases add

This is for models that attend over tokens by one layer. In mode `anchors` an element is an anchor, and what is shown of
it is its own p W h, with what it took from others by attention. With further layers only the weights are shown.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ade import plain
from ade.backends import plain_model
from ade.data.tokens import encode_chunks
from ade.errors import InputError
from ade.explanation import DECIMALS, Explanation
from ade.inspector.layout import map_vectors
from ade.inspector.words import AnchorUse, TokenAnchors, WordTable, nearest_words
from ade.plain import Array
from ade.trained_model import Classifier


@dataclass(frozen=True)
class AnchorParts:
    """What the parts of each of L tokens add to the C scores; they add up to the token's contribution."""

    anchors: list[Array]  # of each token (k, C), in the order of its pairs
    others: Array  # (L, C): other tokens, by attention
    constant: Array  # (L, C): its position and the biases


def anchor_parts(model: plain.Model, ids: Array) -> AnchorParts | None:
    """Return what every anchor of every token adds to the scores; None where further layers make it no sum."""
    assert isinstance(model.table, plain.Pairs)
    weights, head = model.weights, model.weights["head.weight"] * model.deviation  # (C, d)
    states, word = model.states(ids)  # (T, d)
    pooling = model.pooling_weights(states)[:, None]  # (T, 1)
    if model.attend == "anchors":
        each = pooling * (states @ head.T)  # (T, C)
        nothing = np.zeros((len(ids), len(head)))
        return AnchorParts([each[word == token] for token in range(len(ids))], nothing, nothing)
    if "layers.0.norm.weight" in weights:
        return None

    x, _ = model.elements(ids)  # (L, d)
    readout = np.repeat(head[None], len(ids), 0)  # (L, C, d): W + sum_h alpha_tt M_h
    others, constant = np.zeros((len(ids), len(head))), np.zeros((len(ids), len(head)))
    if "sat.output.weight" in weights:
        d, width = x.shape[1], x.shape[1] // model.heads
        output, value = weights["sat.output.weight"], weights["sat.projection.weight"][2 * d :]
        for h, alpha in enumerate(attention_weights(model, x)):  # (L, L)
            of_head = slice(h * width, (h + 1) * width)
            through = head @ output[:, of_head] @ value[of_head]  # (C, d): M_h
            own = np.diagonal(alpha)  # (L,)
            readout = readout + own[:, None, None] * through
            others = others + (alpha - np.diag(own)) @ (x @ through.T)
        constant = constant + head @ (output @ weights["sat.projection.bias"][2 * d :] + weights["sat.output.bias"])
    shift = weights["norm.bias"] + np.zeros_like(x) + model.position(np.arange(len(ids)))  # (L, d)
    constant = constant + np.einsum("lcd,ld->lc", readout, shift)
    norm = weights["norm.weight"]
    anchors = [
        p * _of_anchors(model.table, norm, i, each) for p, i, each in zip(pooling, ids.tolist(), readout, strict=True)
    ]
    return AnchorParts(anchors, pooling * others, pooling * constant)


def _of_anchors(table: plain.Pairs, norm: Array, token: int, readout: Array) -> Array:
    """Return what each anchor of a token adds to a readout (C, d) of its row after LayerNorm: (k, C)."""
    index, beta = table.of(token)
    parts = beta[:, None] * table.anchors[index]  # (k, d): their sum is the token's row
    parts = parts - parts.mean(1, keepdims=True)
    sigma = np.sqrt((parts.sum(0) ** 2).mean() + 1e-5)
    return (parts / sigma * norm) @ readout.T


def attention_weights(model: plain.Model, x: Array) -> Array:
    """Return how much each element (T, d) takes from each other in SAT, by head: (H, T, T)."""
    query, key, _ = np.split(plain.linear(x, "sat.projection", model.weights), 3, axis=1)
    split = [each.reshape(len(x), model.heads, -1).transpose(1, 0, 2) for each in (query, key)]  # (H, T, d / H)
    return plain.softmax(split[0] @ split[1].transpose(0, 2, 1) / np.sqrt(split[0].shape[2]))


@dataclass(frozen=True)
class TextReading:
    """What a classifier computes for the first `max_tokens` tokens of a text; L of them, vectors of width d.

    Where the model attends over anchors, a token's values are the mean over its anchors, and its pooling weight is
    their sum.
    """

    text: str
    truncated: bool  # whether there are more tokens
    ids: Array  # (L,)
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]  # start and end of each token in the text
    states: Array  # (L, d): contextual vectors, the pooler's input
    pooling_weights: Array  # (L,), sum 1
    attention: Array | None  # (L, L): mean over the heads, rows sum to 1; None without SAT
    parts: AnchorParts | None

    def tokens_of(self, word: str) -> list[int]:
        """Return the positions of the tokens of a word's first occurrence in the text."""
        match = re.search(rf"\b{re.escape(word)}\b", self.text, re.IGNORECASE)
        if match is None:
            raise InputError(f"'{word}' does not stand in the text")
        own = [i for i, (start, end) in enumerate(self.spans) if start < match.end() and end > match.start()]
        if not own and self.truncated:
            raise InputError(
                f"'{word}' stands after the first {len(self.ids)} tokens of the text; only those are shown"
            )
        return own


class Inspector:
    """Everything the inspector's page shows of a classifier and of a text, as plain data for JSON.

    The model is read once, by `ade/plain.py`: the classifier must not be trained meanwhile.
    """

    def __init__(self, classifier: Classifier, nearest: int = 8) -> None:
        self.classifier, self.table = classifier, WordTable.of(classifier.saved)
        self.model = plain_model(classifier.saved)
        self.nearest = nearest  # words listed for each anchor
        self._about: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        """Return the labels, the sizes, and for every anchor its nearest words and its coordinates on the map."""
        if not self._about:
            anchors = self.table.codebook.anchors
            words = nearest_words(self.table, np.arange(len(anchors)), self.nearest)
            points = map_vectors(anchors).round(5).tolist()
            self._about = {
                "labels": list(self.classifier.labels),
                "problem": self.classifier.problem,
                "attend": self.model.attend,
                "bytes": self.classifier.saved.nbytes,
                "vocabulary": self.table.codebook.vocabulary,
                "dim": anchors.shape[1],
                "anchors": [{"words": list(near), "x": x, "y": y} for near, (x, y) in zip(words, points, strict=True)],
            }
        return self._about

    def read(self, text: str) -> dict[str, Any]:
        """Return the prediction, the tokens and the attention of a text.

        Each token has its pooling weight (`share`), its anchors with their weights and what they add to the score of
        every label, and what other tokens and its position and the biases add. Label, probabilities and `explanation`
        are those of the text as the model reads it: attention its first `max_tokens` tokens, whose values are here,
        a lexicon more of it. `truncated` says whether there are more tokens.
        """
        reading, explanation = self.read_tokens(text), self.classifier.explain(text)
        tokens = [
            {"token": token, "start": start, "end": end, "share": float(reading.pooling_weights[i])}
            | self._parts(reading, i)
            for i, (token, (start, end)) in enumerate(zip(reading.tokens, reading.spans, strict=True))
        ]
        return {
            "text": text,
            "label": explanation.label,
            "probabilities": {str(label): each for label, each in explanation.probabilities.items()},
            "truncated": reading.truncated,
            "tokens": tokens,
            "attention": None if reading.attention is None else reading.attention.round(6).tolist(),
            "explanation": explanation.as_dict(),
        }

    def read_tokens(self, text: str) -> TextReading:
        """Return what the classifier computes for each token of a text; an empty text has one empty token."""
        classifier, model = self.classifier, self.model
        encoding = next(encode_chunks(classifier.tokenizer, [text], classifier.tokens_read, offsets=True))[0]
        read = slice(classifier.max_tokens)
        ids = np.array(encoding.ids[read] or [0])
        states, word = model.states(ids)  # (T, d), (T,)
        pooling = model.pooling_weights(states)  # (T,)
        attention = None
        if "sat.output.weight" in model.weights:
            attention = attention_weights(model, model.elements(ids)[0]).mean(0)  # (T, T)
        if model.attend == "anchors":  # T anchors -> L tokens
            owner = (word[:, None] == np.arange(len(ids))).astype(states.dtype)  # (T, L)
            mean = (owner / owner.sum(0)).T  # (L, T)
            states, pooling = mean @ states, pooling @ owner
            attention = None if attention is None else mean @ attention @ owner
        return TextReading(
            text=text,
            truncated=len(encoding.ids) > classifier.max_tokens or bool(encoding.overflowing),
            ids=ids,
            tokens=tuple(encoding.tokens[read]) or ("",),
            spans=tuple(encoding.offsets[read]) or ((0, 0),),
            states=states,
            pooling_weights=pooling,
            attention=attention,
            parts=anchor_parts(model, ids),
        )

    def words_in(self, text: str, words: list[str]) -> tuple[Explanation, list[TokenAnchors]]:
        """Return the anchors of each word at its first occurrence in a text, with what they add to the label."""
        reading, explanation = self.read_tokens(text), self.classifier.explain(text)
        label = int(explanation.scores.argmax())
        inspected = []
        for word in words:
            for i in reading.tokens_of(word):
                anchors, weights = self.table.codebook.pairs_of(int(reading.ids[i]))
                near = nearest_words(self.table, anchors, self.nearest)
                adds = [None] * len(anchors) if reading.parts is None else reading.parts.anchors[i][:, label].tolist()
                uses = (
                    AnchorUse(int(anchors[j]), float(weights[j]), near[j], adds[j])
                    for j in np.argsort(-np.abs(weights), kind="stable").tolist()
                )
                inspected.append(TokenAnchors(word, reading.tokens[i], tuple(uses)))
        return explanation, inspected

    def _parts(self, reading: TextReading, i: int) -> dict[str, Any]:
        """Return the anchors of token i, largest weight first, and what the parts of the token add, by label."""
        anchors, weights = self.table.codebook.pairs_of(int(reading.ids[i]))
        parts = reading.parts
        uses = []
        for j in np.argsort(-np.abs(weights), kind="stable").tolist():
            adds = None if parts is None else parts.anchors[i][j].round(DECIMALS).tolist()
            uses.append({"anchor": int(anchors[j]), "weight": float(weights[j]), "adds": adds})
        if parts is None:
            return {"anchors": uses, "others": None, "constant": None}
        rest = {"others": parts.others[i], "constant": parts.constant[i]}
        return {"anchors": uses} | {name: values.round(DECIMALS).tolist() for name, values in rest.items()}
