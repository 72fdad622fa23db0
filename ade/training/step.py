"""One optimizer step after another; on one GPU each shape of batch is recorded as a CUDA graph, then replayed.

A step of a small model is some hundred launches, each shorter than the launching: replayed as a graph they leave no
gaps. A batch is cut out of the tokens on the device, inside the graph, so that all that travels for a step is where its
texts begin, how long they are, and the rate.
"""

from typing import NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from ade.data.batches import Encoded
from ade.data.conll import UNLABELLED
from ade.data.problems import MULTI, MULTI_LABEL_LOGIT, MULTI_LABEL_THRESHOLD, REGRESSION

CLIP = 1.0  # largest norm of the gradient
BUCKET = 16  # lengths are padded to a multiple of this where steps are recorded


class _Recorded(NamedTuple):
    """A graph, where it reads and where it writes."""

    graph: "torch.cuda.CUDAGraph"
    place: Tensor
    sums: Tensor


class Stepper:
    """A model and its optimizer on the rows they learn from."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: PreTrainedModel,
        learning_rate: float,
        weight_decay: float,
        texts: Encoded,
        labels: Tensor | Encoded,
        record: bool | None = None,
    ) -> None:
        """`labels` are the texts', (n,) or (n, C), or their tokens'; `record` None records steps where they can be."""
        self.accelerator, self.texts, self.labels = accelerator, texts, labels
        self.problem = model.config.problem_type
        alone = accelerator.device.type == "cuda" and accelerator.num_processes == 1
        self.record = alone and model.config.attend != "anchors" if record is None else record
        # A recorded step reads the rate where it was recorded; `anchors` has shapes that only the device knows.
        rate = torch.tensor(learning_rate, device=accelerator.device) if self.record else learning_rate
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        adamw = torch.optim.AdamW(trained, rate, weight_decay=weight_decay, fused=True, capturable=self.record)
        self.wrapped, self.optimizer = accelerator.prepare(model, adamw)
        self._seen: dict[tuple[int, int], _Recorded | None] = {}

    def step(self, rows: np.ndarray, seed: int, rate: float) -> Tensor:
        """Learn from these rows; several processes share them. Returns summed loss and right answers, on the device."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        rows = rows[rank::world] if len(rows) >= world else rows
        torch.manual_seed(seed * world + rank)
        for group in self.optimizer.param_groups:
            if self.record:
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.wrapped.train()
        length = int(self.texts.lengths[rows].max())
        place = torch.from_numpy(np.vstack([self.texts.spans(rows), rows]))  # (3, B)
        if not self.record:
            return self._learn(place.to(self.accelerator.device), length) * world
        length = -(-length // BUCKET) * BUCKET
        shape = (len(rows), length)
        if shape not in self._seen:  # the first time as it is: memory is taken, libraries make themselves ready
            self._seen[shape] = None
            return self._learn(place.to(self.accelerator.device), length)
        recorded = self._seen[shape] or self._recorded(place, length)
        recorded.place.copy_(place, non_blocking=True)
        recorded.graph.replay()
        return recorded.sums

    def _recorded(self, place: Tensor, length: int) -> _Recorded:
        graph, place = torch.cuda.CUDAGraph(), place.to(self.accelerator.device)
        others = [each.graph.pool() for each in self._seen.values() if each is not None]
        with torch.cuda.graph(graph, pool=others[0] if others else None):
            sums = self._learn(place, length)
        made = self._seen[place.shape[1], length] = _Recorded(graph, place, sums)
        return made

    def _learn(self, place: Tensor, length: int) -> Tensor:
        self.optimizer.zero_grad()
        ids, mask = self.texts.gather(place[:2], length)
        if isinstance(self.labels, Encoded):
            labels = self.labels.gather(place[:2], length, fill=UNLABELLED)[0]
        else:
            labels = self.labels[place[2]]
        output = self.wrapped(ids, mask, labels)
        self.accelerator.backward(output.loss)
        self.accelerator.clip_grad_norm_(self.wrapped.parameters(), CLIP)
        self.optimizer.step()
        share = _right(output.logits.detach(), labels, self.problem)
        return torch.stack([output.loss.detach(), share]) * len(labels)  # (2,)


def _right(logits: Tensor, labels: Tensor, problem: str | None) -> Tensor:
    """The share of answers that are right; of numbers, none."""
    if problem == REGRESSION:
        return logits.new_zeros(())
    if problem == MULTI:
        return ((logits >= MULTI_LABEL_LOGIT) == (labels >= MULTI_LABEL_THRESHOLD)).float().mean()
    if labels.is_floating_point():
        labels = labels.argmax(1)
    known = labels != UNLABELLED
    return ((logits.argmax(-1) == labels) & known).sum() / known.sum().clamp(min=1)
