"""Tagged words -> token ids with a label for the first token of each word.

The words of a sentence are joined by spaces and tokenized as running text, so that a tagger sees the same tokens as a
classifier.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from tokenizers import Tokenizer

from ade.data.batches import Encoded
from ade.data.conll import TaggedDataset
from ade.data.tokenize import encode_chunks
from ade.progress import Report, silent

UNLABELLED = -100  # the label of tokens without one: `ignore_index` of PyTorch's cross-entropy


def encode_sentences(
    tokenizer: Tokenizer, sentences: Sequence[Sequence[str]], max_length: int, report: Report = silent
) -> tuple[Encoded, np.ndarray]:
    """Token ids of sentences, and for each token the index of the word it is the first token of, else -1."""
    ids: list[int] = []
    words: list[int] = []
    lengths = []
    texts = [" ".join(sentence) for sentence in sentences]
    encodings = chain.from_iterable(encode_chunks(tokenizer, texts, max_length, report, offsets=True))
    for sentence, text, encoding in zip(sentences, texts, encodings, strict=True):
        ids.extend(encoding.ids or [0])
        words.extend(_first_token_words(sentence, text, encoding.offsets) or [-1])
        lengths.append(len(encoding.ids) or 1)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    return Encoded(torch.tensor(ids, dtype=torch.int32), offsets), np.array(words, dtype=np.int64)


def _first_token_words(sentence: Sequence[str], text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """For each token's character span, the index of the word it is the first token of, else -1."""
    word_ends = np.cumsum([len(word) + 1 for word in sentence]) - 1
    words, last = [], -1
    for start, end in spans:
        leading_spaces = len(text[start:end]) - len(text[start:end].lstrip())  # a token may include the space before it
        first = start + leading_spaces
        word = int(np.searchsorted(word_ends, first, side="right")) if first < end else -1
        words.append(word if word > last else -1)
        last = max(last, word)
    return words


def encode_tagged(
    tokenizer: Tokenizer, data: TaggedDataset, max_length: int, report: Report = silent
) -> tuple[Encoded, Encoded]:
    """Token ids of the sentences, and labels of the same layout: a word's tag at its first token, else `UNLABELLED`."""
    texts, words = encode_sentences(tokenizer, data.sentences, max_length, report)
    words_before = np.repeat(np.cumsum([0, *map(len, data.tags)])[:-1], texts.lengths)  # in earlier sentences
    flat = np.concatenate(data.tags)
    labels = np.where(words >= 0, flat[np.clip(words_before + words, 0, len(flat) - 1)], UNLABELLED)
    return texts, Encoded(torch.from_numpy(labels.astype(np.int32)), texts.offsets)
