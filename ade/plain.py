"""The whole method in numpy, from token ids to scores, one text at a time. Read this file first.

The paper's sections are named beside each step. Training, the fast paths and the exported models compute the same; the
tests hold all of them against this file.

L is the number of tokens of a text, T that of the elements attention runs over, d the width of an anchor, K the number
of anchors, C the number of labels. In mode `tokens` an element is a token and T = L; in mode `anchors` it is one anchor
of a token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Weights = Mapping[str, Array]  # of the layers, by name: `sat.output.weight` (outputs, inputs), `sat.output.bias`, ...


@dataclass(frozen=True, eq=False)
class Pairs:
    """The codebook: K shared anchors, and for each token a few (index, weight) pairs. Section Vocabulary Projection."""

    anchors: Array  # (K, d)
    indices: Array  # (P,): which anchor; the pairs of token 0, then those of token 1, ...
    weights: Array  # (P,): how much of it, beta
    counts: Array  # (N,): the number of pairs of each token, k_i >= 1

    def of(self, token: int) -> tuple[Array, Array]:
        """Return the anchor indices and the weights of a token: each (k,)."""
        end = self.counts[: token + 1].sum()
        start = end - self.counts[token]
        return self.indices[start:end], self.weights[start:end]

    def row(self, token: int) -> Array:
        """Return a token's embedding, the weighted sum of its anchors: (d,)."""
        index, beta = self.of(token)
        return beta @ self.anchors[index]


@dataclass(frozen=True, eq=False)
class Lexicon:
    """Scores of tokens and of pairs of neighbouring tokens, added to the model's own. Not in the paper."""

    vocabulary: int  # N, the number of tokens
    keys: Array  # (n,), ascending: a token's id, or N (first + 1) + second of two neighbours
    idf: Array  # (n,): inverse document frequency
    scores: Array  # (n, C): the entry's idf times its weight for each label
    bias: Array  # (C,)


@dataclass(frozen=True)
class Model:
    """A trained model."""

    table: Pairs  # of a table without shared anchors, one pair a token: its own row, 1
    weights: Weights
    heads: int
    attend: str = "tokens"  # or "anchors"
    positions: str = "grouped"  # or "each", "none"
    position_scale: float = 1.0
    pooling: str = "attention"  # or "mean"
    max_tokens: int = 512  # that attention reads; the lexicon reads the whole text
    mean: float = 0.0  # of the targets of a regression
    deviation: float = 1.0
    lexicon: Lexicon | None = None

    def scores(self, ids: Array) -> Array:
        """Return the score of every label: (C,). The paper's Algorithm 1, and the lexicon."""
        own = linear(self.pooled(ids), "head", self.weights) * self.deviation + self.mean  # (C,)
        return own if self.lexicon is None else own + lexicon_scores(self.lexicon, ids)

    def pooled(self, ids: Array) -> Array:
        """Return the vector of a text, which the head reads: (d,)."""
        states, _ = self.states(ids[: self.max_tokens])  # (T, d)
        return self.pooling_weights(states) @ states

    def contributions(self, ids: Array) -> Array:
        """Return what each token that attention reads adds to the scores: (L, C).

        Their sum, the bias and what the lexicon adds are the scores.
        """
        ids = ids[: self.max_tokens]
        states, word = self.states(ids)  # (T, d), (T,)
        each = self.pooling_weights(states)[:, None] * (states @ self.weights["head.weight"].T) * self.deviation
        return np.stack([each[word == token].sum(0) for token in range(len(ids))])

    def token_scores(self, ids: Array) -> Array:
        """Return the scores of every tag for each token: (L, C). A token's vector is the mean over its elements."""
        states, word = self.states(ids)
        means = np.stack([states[word == token].mean(0) for token in range(len(ids))])  # (L, d)
        return linear(means, "head", self.weights)

    def states(self, ids: Array) -> tuple[Array, Array]:
        """Return the contextual vector of each element (T, d), and the token it belongs to (T,)."""
        x, word = self.elements(ids)
        if "sat.output.weight" in self.weights:
            x = x + attention(x, "sat.", self.weights, self.heads)
        layer = 0
        while f"layers.{layer}.norm.weight" in self.weights:  # layers after SAT, not in the paper
            x = further_layer(x, f"layers.{layer}.", self.weights, self.heads)
            layer += 1
        return x, word

    def elements(self, ids: Array) -> tuple[Array, Array]:
        """Return the vectors that attention runs over, positions added (T, d), and the token of each (T,)."""
        if self.attend == "tokens":  # Algorithm 1: anchors are added up, then normalised
            word = np.arange(len(ids))
            rows = np.stack([self.table.row(i) for i in ids])  # (L, d)
            return layer_norm(rows, "norm", self.weights) + self.position(word), word

        # Section SAT: the anchors of all tokens, one after the other. The anchor is normalised, then scaled:
        # LayerNorm of beta a would forget beta.
        normed = layer_norm(self.table.anchors, "norm", self.weights)  # (K, d)
        pairs = [self.table.of(i) for i in ids]
        word = np.repeat(np.arange(len(ids)), [len(index) for index, _ in pairs])  # (T,): the paper's pos_indices
        x = np.concatenate([beta[:, None] * normed[index] for index, beta in pairs])  # (T, d)
        return x + self.position(word if self.positions == "grouped" else np.arange(len(word))), word

    def position(self, at: Array) -> Array | float:
        """Return the encoding of positions (T,): (T, d). Section GPE: all anchors of a word have its position."""
        if self.positions == "none":
            return 0.0
        return self.position_scale * sinusoidal(at, len(self.weights["norm.weight"]))

    def pooling_weights(self, states: Array) -> Array:
        """Return the weight of each element in the pooled vector: (T,). The paper's pooler, Linear(d, 1)."""
        if self.pooling == "mean":
            return np.full(len(states), 1 / len(states))
        return softmax(linear(states, "pooler", self.weights)[:, 0])


def sinusoidal(at: Array, d: int) -> Array:
    """Return the encodings of positions (T,), sine and cosine of the same frequency side by side: (T, d)."""
    frequency = 10_000 ** (-np.arange(0, d, 2) / d)  # (d / 2,)
    angle = at[:, None] * frequency  # (T, d / 2)
    return np.stack([np.sin(angle), np.cos(angle)], 2).reshape(len(at), -1)[:, :d]


def attention(x: Array, name: str, weights: Weights, heads: int) -> Array:
    """Return multi-head attention of elements (T, d): (T, d). Section SAT; there is no feed-forward block."""
    query, key, value = np.split(linear(x, f"{name}projection", weights), 3, axis=1)  # each (T, d)
    mixed = []
    for q, k, v in zip(*(np.split(each, heads, axis=1) for each in (query, key, value)), strict=True):  # (T, d / H)
        alpha = softmax(q @ k.T / np.sqrt(q.shape[1]))  # (T, T): how much each element takes from each other
        mixed.append(alpha @ v)
    return linear(np.concatenate(mixed, axis=1), f"{name}output", weights)


def further_layer(x: Array, name: str, weights: Weights, heads: int) -> Array:
    """Return a further layer's output (T, d): attention and a feed-forward block, each after a LayerNorm."""
    x = x + attention(layer_norm(x, f"{name}attention_norm", weights), f"{name}sat.", weights, heads)
    inner = linear(layer_norm(x, f"{name}norm", weights), f"{name}inner", weights)  # (T, 4 d)
    return x + linear(np.maximum(inner, 0), f"{name}outer", weights)


def lexicon_scores(lexicon: Lexicon, ids: Array) -> Array:
    """Return what a lexicon adds: the sum of the text's distinct entries over the norm of their idf: (C,)."""
    ids = ids.astype(np.int64)  # the number of a bigram may be large
    bigrams = lexicon.vocabulary * (ids[:-1] + 1) + ids[1:]  # (L - 1,)
    wanted = np.unique(np.concatenate([ids, bigrams]))
    place = np.searchsorted(lexicon.keys, wanted)
    entries = place[np.append(lexicon.keys, -1)[place] == wanted]
    if len(entries) == 0:
        return lexicon.bias
    length = np.sqrt((lexicon.idf[entries] ** 2).sum())
    return lexicon.bias + lexicon.scores[entries].sum(0) / length


def linear(x: Array, name: str, weights: Weights) -> Array:
    """Return a linear layer's output for vectors (..., inputs): (..., outputs)."""
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x: Array, name: str, weights: Weights) -> Array:
    """Return vectors (..., d) with mean 0 and variance 1, then scaled and shifted."""
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def softmax(scores: Array) -> Array:
    """Return positive weights that add up to 1 along the last axis."""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)
