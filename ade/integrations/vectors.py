"""One vector a text: the mean of its token vectors in a codebook, or the pooled vector of a trained classifier.

The mean of composed tokens is linear in the anchors, so no token needs to be composed: the pair weights of a text are
summed for each anchor, and one matrix product with the anchors gives the vectors.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from ade.classifier import Classifier
from ade.codebook import Codebook
from ade.data.batches import encode, sorted_batches
from ade.data.tokenize import CHUNK, encode_chunks

MAX_CELLS = 1 << 22  # of the texts x anchors matrix that is in memory at a time


def mean_vectors(codebook: Codebook, texts: Sequence[str], max_tokens: int = 512) -> np.ndarray:
    """The mean of each text's composed tokens, without special tokens: (n, d) float32.

    A text is truncated to `max_tokens` tokens; the vector of a text without tokens is zero.
    """
    anchors = codebook.anchors.numpy()
    vectors = np.zeros((len(texts), codebook.dim), np.float32)
    step = max(1, min(CHUNK, MAX_CELLS // len(anchors)))
    for start in range(0, len(texts), step):
        some = texts[start : start + step]
        encodings = encode_chunks(codebook.tokenizer, some, max_tokens, first=start, special=False)
        rows = [encoding.ids for encoding in chain.from_iterable(encodings)]
        lengths = np.array([len(row) for row in rows])
        ids = np.fromiter(chain.from_iterable(rows), np.int64, int(lengths.sum()))
        vectors[start : start + step] = _mean_weights(codebook, ids, lengths) @ anchors
    return vectors


def _mean_weights(codebook: Codebook, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mean weight of each anchor over the tokens of each text: (n, K); `ids` are those of all texts in a row."""
    # Where the pairs of every token are stored: its own offset, then one further for each of its pairs.
    counts = codebook.counts.numpy()[ids].astype(np.int64)  # (T,): pairs of each token
    first = np.cumsum(counts) - counts
    pair = np.repeat(codebook.offsets.numpy()[ids] - first, counts) + np.arange(counts.sum())

    # Sum the weights in the cell of their text and anchor.
    text = np.repeat(np.repeat(np.arange(len(lengths)), lengths), counts)
    shape = (len(lengths), len(codebook.anchors))
    cell = text * shape[1] + codebook.indices.numpy()[pair]
    sums = np.bincount(cell, codebook.weights.numpy()[pair], shape[0] * shape[1]).reshape(shape)
    return (sums / np.maximum(lengths, 1)[:, None]).astype(np.float32)


@torch.inference_mode()
def pooled_vectors(classifier: Classifier, texts: Sequence[str]) -> np.ndarray:
    """The pooled vector of each text, which is the input of the model's classification layer: (n, d) float32.

    A text is truncated to the model's `max_tokens` tokens: these are the vectors of the first window of a long text,
    whereas predictions average the class scores of all windows. Scores of a lexicon are not part of them.
    """
    model = classifier.model.eval()
    encoded = encode(classifier.tokenizer, texts, classifier.max_tokens).to(model.device)
    vectors = torch.empty(len(encoded), model.config.hidden_size)
    for rows in sorted_batches(encoded.lengths):
        states, mask = model.ade.states(*encoded.padded(rows))
        vectors[torch.from_numpy(rows)] = model.pool(states, mask).float().cpu()
    return vectors.numpy()
