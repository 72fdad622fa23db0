"""Which fast path runs a model: numpy tables on a CPU, Triton kernels on a GPU, or neither."""

from collections.abc import Callable

import numpy as np
import torch
from tokenizers import Tokenizer

from ade.data.batches import Encoded
from ade.data.problems import names_of, problem_of
from ade.lexicon import lexicon_of
from ade.model import AdeForSequenceClassification
from ade.runtime import kernels
from ade.runtime.gpu import GpuModel, unsupported
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime
from ade.runtime.tables import fold

CACHED_TYPES = 65_536  # more than in the light runtime: memory matters less beside torch
Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]  # ids and offsets of concatenated texts -> class scores (n, C)


def fast_path(model: AdeForSequenceClassification, tokenizer: Tokenizer) -> Scores | None:
    """A function from token ids to class scores by precomputed tables; None where no fast path supports the model."""
    stored = model.packed()  # as it will be stored, where it is only rounded so far
    config, state = stored.config, stored.arrays()
    tables, lexicon = fold(config.to_dict(), state), lexicon_of(config.to_dict(), state)

    if model.device.type == "cpu":
        names = names_of(config.id2label, config.num_labels)
        problem = problem_of(config.problem_type, config.num_labels)
        projection = Projection(tables, CACHED_TYPES)
        return Runtime(projection, tokenizer, names, problem=problem, lexicon=lexicon).scores

    if not kernels.available or unsupported(tables) is not None:
        return None
    has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    gpu = GpuModel(tables, model.device, torch.bfloat16 if has_bfloat16 else torch.float32, lexicon)
    return lambda ids, offsets: gpu.logits(Encoded(torch.from_numpy(ids), offsets))
