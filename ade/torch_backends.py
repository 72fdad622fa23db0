"""The backends that need torch: a model's own forward pass, and Triton kernels on a GPU."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ade.data.batches import padded_batches
from ade.data.tokens import Ragged
from ade.embedding import LexiconLayer
from ade.folder import Saved
from ade.model import TorchModel, model_of
from ade.runtime.tables import lookup_tables

if TYPE_CHECKING:
    from ade.runtime.gpu import GpuScores


def torch_backend(saved: Saved, device: str) -> "TorchBackend":
    """Return the fastest backend for a device: Triton's kernels where they support the model, else torch."""
    target = torch.device(device)
    if target.type == "cuda" and saved.config.attend == "tokens" and saved.config.pools:
        from ade.runtime import kernels
        from ade.runtime.gpu import GpuScores, unsupported

        tables = lookup_tables(saved)
        if kernels.available and unsupported(tables) is None:
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
            dtype = torch.bfloat16 if has_bfloat16 else torch.float32
            lexicon = None if saved.lexicon is None else LexiconLayer(saved.lexicon).to(target)
            return TritonBackend(saved, GpuScores(tables, target, dtype, lexicon))
    return TorchBackend(model_of(saved).to(target))


class TorchBackend:
    """The forward pass of training."""

    def __init__(self, model: TorchModel) -> None:
        """Put the model in evaluation mode; it stays on its device."""
        self.model = model.eval()

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C). Of an encoder the vectors."""
        return self._of_each(texts, lambda ids, mask: self.model(ids, mask)[0], self.model.settings.outputs)

    def vectors(self, texts: Ragged) -> np.ndarray:
        """Return the pooled vector of each text, which the head reads: (n, d)."""
        texts = texts.first(self.model.settings.max_tokens)
        return self._of_each(texts, self.model.pooled, self.model.head.in_features)

    @torch.inference_mode()
    def _of_each(self, texts: Ragged, compute: Callable[[Tensor, Tensor], Tensor], width: int) -> np.ndarray:
        values = torch.empty(len(texts), width, device=self.model.device)
        for rows, ids, mask in padded_batches(texts, self.model.device):
            values[torch.from_numpy(rows).to(self.model.device)] = compute(ids, mask).float()
        return values.cpu().numpy()

    @torch.inference_mode()
    def token_scores(self, texts: Ragged) -> tuple[np.ndarray, np.ndarray]:
        """Return pooling weights (T,) and scores (T, C), the bias included, of the tokens that attention reads."""
        texts = texts.first(self.model.settings.max_tokens)
        weights = np.empty(len(texts.ids), np.float32)
        scores = np.empty((len(texts.ids), self.model.settings.outputs), np.float32)
        for rows, ids, mask in padded_batches(texts, self.model.device):
            real = mask.cpu().numpy()
            place = (texts.offsets[rows][:, None] + np.arange(real.shape[1]))[real]
            of_batch = self.model.token_scores(ids, mask)  # (B, L), (B, L, C)
            weights[place], scores[place] = (each.float().cpu().numpy()[real] for each in of_batch)
        return weights, scores


class TritonBackend(TorchBackend):
    """Lookup tables on a GPU for scores; the forward pass for all else."""

    def __init__(self, saved: Saved, tables: "GpuScores") -> None:
        super().__init__(model_of(saved).to(tables.device))
        self.tables = tables

    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        return self.tables.pooled(texts)
