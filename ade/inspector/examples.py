"""Pairs of sentences that share a word with two senses, and how clearly a model tells the senses apart.

What the context should do: move the composed word towards the other words of its sentence. With the word's vectors v_1
and v_2 in the two sentences, its vector v without context, and the means m_1 and m_2 of the sentences' other words:

    moved = (v_2 - v_1) . (m_2 - m_1) / (|v| |m_2 - m_1|)
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.classifier import Classifier
from ade.inspector.page import EXAMPLES
from ade.inspector.reading import read, tokens_of_word

TINY = 1e-3  # below it the two sentences are the same to the model, as where it knows none of their words


def rank_examples(classifier: Classifier) -> list[dict[str, Any]]:
    """Return the examples as plain data, the one whose context does most of what it should first."""
    found = [
        {"word": word, "texts": list(texts), "moved": moved(classifier, word, texts)}
        for word, texts in EXAMPLES.items()
    ]
    return sorted(found, key=lambda each: -each["moved"])


def moved(classifier: Classifier, word: str, texts: tuple[str, str]) -> float:
    """Return how far a word moves towards its sentence between two sentences; 0 for a model without gates."""
    table = classifier.model.ade.embedding.table().detach().float().cpu()  # (K, d)
    words, sentences, alone = [], [], torch.zeros(table.shape[1])
    for text in texts:
        reading = read(classifier, text)
        own = [] if reading.truncated else tokens_of_word(reading, word)
        others = [i for i in range(len(reading.ids)) if i not in own]
        if not own or not others:  # a short window, or a tokenizer that drops the word
            return 0.0
        words.append(reading.contextual[own].mean(0) @ table)  # (d,)
        sentences.append(F.normalize(reading.static[others] @ table, dim=1).mean(0))  # (d,)
        alone = reading.static[own].mean(0) @ table
    return _share_of(words[1] - words[0], sentences[1] - sentences[0], alone)


def _share_of(change: Tensor, direction: Tensor, whole: Tensor) -> float:
    """Return how much of a change points in a direction, as a share of the length of a vector."""
    size = float(whole.norm() * direction.norm())
    return round(float(change @ direction) / size, 4) if size > TINY else 0.0
