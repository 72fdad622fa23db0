"""Inspector: everything the inspector's page shows of a model and of a text, ready for JSON."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.problems import REGRESSION
from ade.data.tokenize import encode_batch
from ade.inspector.layout import flattened
from ade.inspector.words import codebook_of, nearest_words


class Inspector:
    """A trained classifier, opened: its anchors once, each text as it comes. The model must not change meanwhile."""

    def __init__(self, classifier: Classifier, nearest: int = 8) -> None:
        self.classifier = classifier
        self.nearest = nearest  # words kept for each anchor

    def about(self) -> dict[str, Any]:
        """The model: its labels, its shape, and every anchor with its nearest words and its place on a map."""
        return self._about

    @cached_property
    def codebook(self) -> Codebook:
        """The model's dictionary."""
        return codebook_of(self.classifier)

    @cached_property
    def _about(self) -> dict[str, Any]:
        book, model = self.codebook, self.classifier.model
        words = nearest_words(book, torch.arange(len(book.anchors)), self.nearest)
        places = flattened(book.anchors.numpy()).round(5).tolist()
        stored = model.packed().state_dict().values()
        return {
            "labels": list(self.classifier.names),
            "problem": self.classifier.problem,
            "attend": model.config.attend,
            "bytes": sum(tensor.numel() * tensor.element_size() for tensor in stored),
            "vocabulary": book.vocabulary,
            "dim": book.dim,
            "anchors": [{"words": list(near), "x": x, "y": y} for near, (x, y) in zip(words, places, strict=True)],
        }

    @torch.no_grad()
    def read(self, text: str) -> dict[str, Any]:
        """A text: its label and probabilities, and for each token its anchors, its share in the pooling, what it hears.

        A model that attends over anchors has a share and a row of attention for each anchor of a token: shares are
        added up, rows averaged. Only `gated` weighs anchors anew; elsewhere `in_context` is the static weight.
        """
        encoding = encode_batch(self.classifier.tokenizer, [text], offsets=True)[0]
        model = self.classifier.model
        ids = torch.tensor([encoding.ids or [0]], device=model.device)
        mask = torch.ones_like(ids, dtype=torch.bool)
        states, real = model.ade.states(ids, mask)
        share, attention = model.pooling_weights(states, real)[0], self._attention(ids, mask)  # (T,), (T, T)
        if model.config.attend == "anchors":
            owner = F.one_hot(model.ade.embedding.expand(ids, mask).word[0], ids.shape[1]).to(share.dtype)  # (T, L)
            share = share @ owner
            attention = None if attention is None else (owner / owner.sum(0)).T @ attention @ owner  # (L, L)
        heard = model.ade.context(ids, mask)
        gates = None if heard is None else model.ade.gates(heard[0]).float().cpu()  # (L, K)
        tokens, spans = encoding.tokens or [""], encoding.offsets or [(0, 0)]
        return {
            "text": text,
            **self._answer(text),
            "tokens": [
                {"token": token, "start": start, "end": end, "share": part, "anchors": self._uses(place, at, gates)}
                for at, (place, token, (start, end), part) in enumerate(
                    zip(ids[0].tolist(), tokens, spans, share.float().tolist(), strict=True)
                )
            ],
            "attention": None if attention is None else attention.double().cpu().numpy().round(6).tolist(),
        }

    def _answer(self, text: str) -> dict[str, Any]:
        if self.classifier.problem == REGRESSION:
            return {"label": self.classifier.predict(text), "probabilities": {}}
        chances: np.ndarray = self.classifier.predict_proba(text)
        return {
            "label": self.classifier.predict(text),
            "probabilities": dict(zip(self.classifier.names, chances.tolist(), strict=True)),
        }

    def _attention(self, ids: Tensor, mask: Tensor) -> Tensor | None:
        """What each element hears from each, averaged over the heads; nothing without SAT."""
        ade = self.classifier.model.ade
        return None if ade.sat is None else ade.sat.attention(*ade.elements(ids, mask))[0].mean(0)

    def _uses(self, token: int, at: int, gates: Tensor | None) -> list[dict[str, Any]]:
        """The anchors of the token at a place of the text, the heaviest first."""
        anchors, weights = self.codebook.pairs_of(token)
        here = weights if gates is None else weights * gates[at, anchors]
        order = weights.abs().argsort(descending=True, stable=True)
        rows = zip(anchors[order].tolist(), weights[order].tolist(), here[order].tolist(), strict=True)
        return [{"anchor": anchor, "weight": weight, "in_context": now} for anchor, weight, now in rows]
