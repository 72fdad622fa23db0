"""The backend of torch: a model's own forward pass, on any device."""

import numpy as np
import torch

from ade.configuration import ENCODER
from ade.data.batches import padded_batches
from ade.data.tokens import Ragged
from ade.folder import Saved
from ade.model import TorchModel, model_of
from ade.runtime.tables import LookupTables


def torch_backend(saved: Saved, device: str) -> "TorchBackend":
    """Return the fastest backend for a device: Triton's kernels where they support the model, else torch."""
    target = torch.device(device)
    if target.type == "cuda" and saved.config.attend == "tokens" and saved.config.pools:
        from ade.triton_backend import TritonBackend, can_run  # Triton is for GPUs alone

        tables = LookupTables(saved)
        if can_run(tables):
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
            return TritonBackend(saved, tables, target, torch.bfloat16 if has_bfloat16 else torch.float32)
    return TorchBackend(model_of(saved).to(target))


class TorchBackend:
    """The forward pass of training."""

    def __init__(self, model: TorchModel) -> None:
        """Put the model in evaluation mode; it stays on its device."""
        self.model = model.eval()

    @torch.inference_mode()
    def scores(self, texts: Ragged) -> np.ndarray:
        """Return the score of every label for each text, the lexicon's added: (n, C)."""
        model, scores = self.model, torch.empty(len(texts), self.model.settings.outputs, device=self.model.device)
        for rows, ids, mask in padded_batches(texts, model.device):
            # Of an encoder before they are unit vectors, as other backends give them.
            given = model.head(model.pooled(ids, mask)) if model.kind == ENCODER else model(ids, mask).logits
            scores[torch.from_numpy(rows).to(model.device)] = given.float()
        return scores.cpu().numpy()

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
