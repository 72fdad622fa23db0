"""Texts -> one vector each: the mean of a codebook's tokens, or what a trained model pools before it classifies.

The mean of composed tokens is linear in the anchors, so no token is composed at all: the weights of all pairs of a
text are added up anchor by anchor, and one matrix product with the anchors gives the vectors.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.batches import encode, sorted_batches
from ade.data.tokenize import CHUNK, encode_chunks

CELLS = 1 << 22  # of the matrix of texts and anchors that is held at a time


def mean_vectors(codebook: Codebook, texts: Sequence[str], max_tokens: int = 512) -> np.ndarray:
    """The mean of each text's composed tokens, special ones left out: (n, d) float32; 0 for a text without tokens."""
    anchors = codebook.anchors.numpy()
    vectors = np.zeros((len(texts), codebook.dim), np.float32)
    step = max(1, min(CHUNK, CELLS // len(anchors)))
    for start in range(0, len(texts), step):
        some = encode_chunks(codebook.tokenizer, texts[start : start + step], max_tokens, first=start, special=False)
        rows = list(chain.from_iterable(some))
        lengths = np.array([len(row.ids) for row in rows])
        ids = np.fromiter(chain.from_iterable(row.ids for row in rows), np.int64, int(lengths.sum()))
        vectors[start : start + step] = _mean_pairs(codebook, ids, lengths) @ anchors
    return vectors


def _mean_pairs(codebook: Codebook, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """How much of each anchor the mean token of a text has: (n, K), for texts kept end to end."""
    counts = codebook.counts.numpy()[ids].astype(np.int64)  # (T,)
    before = codebook.offsets.numpy()[ids] - (np.cumsum(counts) - counts)
    slot = np.repeat(before, counts) + np.arange(counts.sum())  # where the pairs of all tokens are kept
    text = np.repeat(np.repeat(np.arange(len(lengths)), lengths), counts)
    cell = text * len(codebook.anchors) + codebook.indices.numpy()[slot]
    size = (len(lengths), len(codebook.anchors))
    sums = np.bincount(cell, codebook.weights.numpy()[slot], size[0] * size[1]).reshape(size)
    return (sums / np.maximum(lengths, 1)[:, None]).astype(np.float32)


@torch.inference_mode()
def pooled_vectors(classifier: Classifier, texts: Sequence[str]) -> np.ndarray:
    """What a trained model's classifier layer sees of each text: (n, d) float32."""
    model = classifier.model.eval()
    encoded = encode(classifier.tokenizer, texts, classifier.max_tokens).to(model.device)
    vectors = torch.empty(len(encoded), model.config.hidden_size)
    for rows in sorted_batches(encoded.lengths):
        states, mask = model.ade.states(*encoded.padded(rows))
        vectors[torch.from_numpy(rows)] = model.pool(states, mask).float().cpu()
    return vectors.numpy()
