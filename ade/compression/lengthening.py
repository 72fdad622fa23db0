"""How much coded rows of an output table are lengthened, by their number of stages, so that scores come out right.

A code is the mean of what it stands for: rows of few codes are short, and a token of such a row has too low a score
where it is likely. Lengthened too much, the errors of very many unlikely rows take over. What is best is found by
comparison with the distributions of the original table.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ade.compression.table import PackedTable

SCORES = 24_000_000  # of vectors with rows, at most
STEPS = 6  # of the search
LEAST, MOST = 0.5, 2.0


def lengthen(table: PackedTable, states: Tensor, original: Tensor) -> None:
    """Set the gains of a table, in place, given vectors (n, d) that its rows and those of `original` are scored by.

    All on the CPU; some of the vectors are enough.
    """
    if not table.shape.stages or not len(states):
        return
    table.fill({"gains": torch.ones(len(table.shape.stages))})
    chosen = states[torch.linspace(0, len(states) - 1, max(1, min(len(states), SCORES // len(original)))).long()]
    with torch.no_grad():
        wanted = torch.cat([chosen @ part.float().T for part in original.split(16384)], 1).log_softmax(1)
        wanted = wanted[:, torch.argsort(table.slots().long())]  # by place, as the scores below
        fixed, _ = table.products_without_codes(chosen)
        coded = (table.by_slot(chosen) - fixed)[:, table.shape.exact :]
    gains = torch.ones(len(table.shape.stages), requires_grad=True)
    search = torch.optim.LBFGS([gains], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        scores = fixed.clone()
        for gain, (begin, end) in zip(gains, table.shape.ranges(), strict=True):
            scores[:, table.shape.exact + begin : table.shape.exact + end] += gain * coded[:, begin:end]
        found = F.kl_div(scores.log_softmax(1), wanted, log_target=True, reduction="batchmean")
        found.backward()
        return found.detach()

    search.step(loss)
    table.fill({"gains": gains.detach().nan_to_num(1.0).clamp(LEAST, MOST)})
