"""Optimizer steps; on a GPU the step for each batch shape is captured as a CUDA graph and replayed.

A step of a small model is some hundred kernels that run faster than they are launched; a graph launches them at once.
The graph also cuts the batch out of the token ids on the device, so that a step transfers only the starts and lengths
of its texts and the learning rate.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ade.data.batches import DeviceTokens
from ade.data.tags import UNLABELLED

MAX_NORM = 1.0  # gradients are clipped to this norm
BUCKET = 16  # with CUDA graphs, lengths are padded to a multiple of this


class _Captured(NamedTuple):
    """A CUDA graph with its input and output tensors."""

    graph: "torch.cuda.CUDAGraph"
    place: Tensor
    loss: Tensor


class TrainStep:
    """Runs optimizer steps of a model on tokenized texts that stay on the device."""

    def __init__(
        self,
        model: PreTrainedModel,
        weight_decay: float,
        texts: DeviceTokens,
        labels: Tensor | DeviceTokens,
    ) -> None:
        """`labels` are (n,) or (n, C), one per text, or one per token; the model is on its device."""
        self.model, self.device, self.texts, self.labels = model, model.device, texts, labels
        # The shapes of `attend="anchors"` depend on the tokens, so they are not known when a graph is captured.
        cuda = self.device.type == "cuda"
        self.record = cuda and model.settings.attend != "anchors"
        self.bf16 = cuda and torch.cuda.is_bf16_supported()

        # Every step sets the learning rate. A graph reads it from a tensor: a number would be captured as a constant.
        rate = torch.tensor(0.0, device=self.device) if self.record else 0.0
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, rate, weight_decay=weight_decay, fused=True, capturable=self.record)
        self._captured: dict[tuple[int, int], _Captured | None] = {}  # by batch shape; None after its first step

    def step(self, rows: np.ndarray, seed: int, rate: float) -> Tensor:
        """One step on rows; returns their summed loss, on the device."""
        torch.manual_seed(seed)
        for group in self.optimizer.param_groups:
            if self.record:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.model.train()

        spans = self.texts.spans(rows)
        length = int(spans[1].max())
        place = torch.from_numpy(np.vstack([spans, rows]))  # (3, B)
        if not self.record:
            return self._run(place.to(self.device), length)

        length = -(-length // BUCKET) * BUCKET
        shape = (len(rows), length)
        if shape not in self._captured:  # a shape's first step is a warm-up, which allocates memory, as CUDA asks for
            self._captured[shape] = None
            return self._run(place.to(self.device), length)
        captured = self._captured[shape] or self._capture(place, length)
        captured.place.copy_(place, non_blocking=True)
        captured.graph.replay()
        return captured.loss

    def _capture(self, place: Tensor, length: int) -> _Captured:
        """Capture the graph of a batch shape; all graphs share one memory pool."""
        graph, place = torch.cuda.CUDAGraph(), place.to(self.device)
        pools = [each.graph.pool() for each in self._captured.values() if each is not None]
        with torch.cuda.graph(graph, pool=pools[0] if pools else None):
            loss = self._run(place, length)
        captured = self._captured[place.shape[1], length] = _Captured(graph, place, loss)
        return captured

    def _run(self, place: Tensor, length: int) -> Tensor:
        """Forward, backward and optimizer step on texts at `place` (3, B): start, length and row of each."""
        self.optimizer.zero_grad()
        ids, mask = self.texts.gather(place[:2], length)
        if isinstance(self.labels, DeviceTokens):
            labels = self.labels.gather(place[:2], length, fill=UNLABELLED)[0]
        else:
            labels = self.labels[place[2]]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.model(ids, mask, labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        return loss.detach() * len(labels)
