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
from ade.explanation import DECIMALS
from ade.inspector.words import NEAREST, WordTable
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
    anchors = []
    for token, p, to_scores in zip(ids.tolist(), pooling, readout, strict=True):
        index, beta = model.table.of(token)
        parts = beta[:, None] * model.table.anchors[index]  # (k, d): their sum is the token's row
        parts = parts - parts.mean(1, keepdims=True)
        sigma = np.sqrt((parts.sum(0) ** 2).mean() + 1e-5)
        anchors.append(p * (parts / sigma * weights["norm.weight"]) @ to_scores.T)  # (k, C)
    return AnchorParts(anchors, pooling * others, pooling * constant)


def attention_weights(model: plain.Model, x: Array) -> Array:
    """Return how much each element (T, d) takes from each other in SAT, by head: (H, T, T)."""
    query, key, _ = np.split(plain.linear(x, "sat.projection", model.weights), 3, axis=1)
    split = [each.reshape(len(x), model.heads, -1).transpose(1, 0, 2) for each in (query, key)]  # (H, T, d / H)
    return plain.softmax(split[0] @ split[1].transpose(0, 2, 1) / np.sqrt(split[0].shape[2]))


class Inspector:
    """Everything the inspector's page shows of a classifier and of a text, as plain data for JSON.

    The model is read once, by `ade/plain.py`: the classifier must not be trained meanwhile.
    """

    def __init__(self, classifier: Classifier, nearest: int = NEAREST) -> None:
        self.classifier, self.table = classifier, WordTable.of(classifier.saved)
        self.model = plain_model(classifier.saved)
        self.nearest = nearest  # words listed for each anchor

    def about(self) -> dict[str, Any]:
        """Return the labels, the sizes, and for every anchor its nearest words and its coordinates on the map."""
        anchors = self.table.codebook.anchors
        words = self.table.nearest(np.arange(len(anchors)), self.nearest)
        points = anchor_map(anchors).round(5).tolist()
        return {
            "labels": list(self.classifier.labels),
            "problem": self.classifier.problem,
            "attend": self.model.attend,
            "bytes": self.classifier.saved.nbytes,
            "vocabulary": self.table.codebook.vocabulary,
            "dim": anchors.shape[1],
            "anchors": [{"words": near, "x": x, "y": y} for near, (x, y) in zip(words, points, strict=True)],
        }

    def read(self, text: str) -> dict[str, Any]:
        """Return the prediction, the tokens and the attention of a text; an empty text has one empty token.

        Each token has its pooling weight (`share`), its anchors with their weights and what they add to the score of
        every label, and what other tokens and its position and the biases add. Over anchors, its values are the mean
        over its anchors, and its pooling weight is their sum. Label, probabilities and `explanation` are those of the
        text as the model reads it: attention its first `max_tokens` tokens, whose values are here, a lexicon more of
        it. `truncated` says whether there are more tokens.
        """
        classifier, model, explanation = self.classifier, self.model, self.classifier.explain(text)
        encoding = next(encode_chunks(classifier.tokenizer, [text], classifier.tokens_read, offsets=True))[0]
        ids = np.array(encoding.ids[: classifier.max_tokens] or [0])  # (L,)
        states, word = model.states(ids)  # (T, d), (T,)
        owner = word[:, None] == np.arange(len(ids))  # (T, L): over tokens, T = L
        shares = model.pooling_weights(states) @ owner  # (L,)
        attention = None
        if "sat.output.weight" in model.weights:
            over_elements = attention_weights(model, model.elements(ids)[0]).mean(0)  # (T, T)
            attention = (owner / owner.sum(0)).T @ over_elements @ owner  # (L, L): rows sum to 1

        parts = anchor_parts(model, ids)
        spellings, spans = encoding.tokens or [""], encoding.offsets or [(0, 0)]
        tokens = []
        for i, token in enumerate(ids.tolist()):
            start, end = spans[i]
            shown = {"token": spellings[i], "start": start, "end": end, "share": float(shares[i])}
            anchors, weights = self.table.codebook.of(token)
            adds = [None] * len(anchors) if parts is None else _rounded(parts.anchors[i])
            order = np.argsort(-np.abs(weights), kind="stable").tolist()
            shown["anchors"] = [
                {"anchor": int(anchors[j]), "weight": float(weights[j]), "adds": adds[j]} for j in order
            ]
            shown["others"] = None if parts is None else _rounded(parts.others[i])
            shown["constant"] = None if parts is None else _rounded(parts.constant[i])
            tokens.append(shown)
        return {
            "text": text,
            "label": explanation.label,
            "probabilities": {str(label): each for label, each in explanation.probabilities.items()},
            "truncated": len(encoding.ids) > classifier.max_tokens or bool(encoding.overflowing),
            "tokens": tokens,
            "attention": None if attention is None else attention.round(6).tolist(),
            "explanation": explanation.as_dict(),
        }

    def words_in(self, text: str, words: list[str]) -> tuple[str, list[dict[str, Any]]]:
        """Return the name of the margin that decides, and the anchors of each word where it first occurs.

        They are those of `inspect_words` with what each `adds` to the margin, where that can be said.
        """
        reading, explanation = self.read(text), self.classifier.explain(text)
        label, against = explanation.places()
        inspected = []
        for word in words:
            for token in _tokens_of(reading, word):
                near = self.table.nearest([use["anchor"] for use in token["anchors"]], self.nearest)
                uses = []
                for use, words_near in zip(token["anchors"], near, strict=True):
                    adds = {}
                    if use["adds"] is not None:
                        adds["adds"] = use["adds"][label] - (0.0 if against is None else use["adds"][against])
                    uses.append({"anchor": use["anchor"], "weight": use["weight"], "nearest": words_near, **adds})
                inspected.append({"word": word, "token": token["token"], "anchors": uses})
        return explanation.margin().name, inspected


def _tokens_of(reading: dict[str, Any], word: str) -> list[dict[str, Any]]:
    """Return the tokens of a word's first occurrence in the text."""
    match = re.search(rf"\b{re.escape(word)}\b", reading["text"], re.IGNORECASE)
    if match is None:
        raise InputError(f"'{word}' does not stand in the text")
    tokens = [token for token in reading["tokens"] if token["start"] < match.end() and token["end"] > match.start()]
    if not tokens and reading["truncated"]:
        count = len(reading["tokens"])
        raise InputError(f"'{word}' stands after the first {count} tokens of the text; only those are shown")
    return tokens


def _rounded(values: Array) -> list[Any]:
    return values.round(DECIMALS).tolist()


def anchor_map(anchors: Array) -> Array:
    """Map anchors (K, d) of norm one to points (K, 2) in the unit square: their first two principal components."""
    centred = anchors.astype(np.float64) - anchors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # (d, d), those of the largest variance last
    axes = axes[:, :-3:-1]
    axes *= np.sign(axes[np.abs(axes).argmax(0), [0, 1]])  # of either sign: that of the largest entry
    points = centred @ axes  # (K, 2)
    points += 1e-3 * points.std() * np.random.default_rng(0).standard_normal(points.shape)  # equal ones lie apart
    low = points.min(0)
    return (points - low) / np.maximum(points.max(0) - low, 1e-9)
