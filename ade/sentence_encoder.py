"""SentenceEncoder: an encoder as a PyTorch model with its tokenizer; text in, unit vectors out; saved as a folder."""

from pathlib import Path
from typing import Self

import numpy as np
import torch
from tokenizers import Tokenizer

from ade.classifier import Stored, load_model
from ade.data.batches import Encoded, sorted_batches
from ade.encoder import Encoder
from ade.sentence_model import AdeForSentenceEmbedding


@torch.inference_mode()
def embed(model: AdeForSentenceEmbedding, texts: Encoded) -> np.ndarray:
    """Return the unit vectors (n, D) of texts, by the model's forward pass; puts the model in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    vectors = torch.empty(len(texts), model.config.output_size, device=model.device)
    for rows in sorted_batches(texts.lengths):
        vectors[torch.from_numpy(rows).to(model.device)] = model(*texts.padded(rows)).embeddings
    return vectors.cpu().numpy()


class SentenceEncoder(Encoder, Stored[AdeForSentenceEmbedding]):
    """A trained encoder as a PyTorch model, on any device."""

    kind = AdeForSentenceEmbedding

    def __init__(self, model: AdeForSentenceEmbedding, tokenizer: Tokenizer) -> None:
        self.longest = int(model.config.max_tokens)
        Stored.__init__(self, model, tokenizer)
        self.dim = int(model.config.output_size)

    def vectors(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return vectors (n, D); the tokens of text i are `ids[offsets[i]:offsets[i + 1]]`."""
        return embed(self.model, Encoded(torch.from_numpy(ids), offsets))

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", threads: int = 0) -> Self:
        """Load an encoder folder or an encoder on the hub (safetensors only, no remote code)."""
        return cls(*load_model(cls.kind, folder, device))
