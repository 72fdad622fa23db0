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
from ade.runtime.gpu import Accelerated
from ade.runtime.projection import Projection
from ade.runtime.runtime import Runtime

CACHED_TYPES = 65_536  # beside torch memory matters less: more token types are kept than in the light runtime
Scores = Callable[[np.ndarray, np.ndarray], np.ndarray]  # token ids and offsets of texts end to end -> (n, C)


def fast_path(model: AdeForSequenceClassification, tokenizer: Tokenizer) -> Scores | None:
    """A function from token ids to class scores by precomputed tables; None where the model has no such path."""
    stored = model.packed()  # as it will be stored, where it is only rounded so far
    config = stored.config
    state = stored.arrays()
    projection, lexicon = Projection(config.to_dict(), state, CACHED_TYPES), lexicon_of(config.to_dict(), state)
    if model.device.type == "cpu":
        names = names_of(config.id2label, config.num_labels)
        problem = problem_of(config.problem_type, config.num_labels)
        return Runtime(projection, tokenizer, names, problem=problem, lexicon=lexicon).scores
    if not kernels.available or not Accelerated.fits(projection):
        return None
    narrow = torch.cuda.is_bf16_supported(including_emulation=False)
    gpu = Accelerated(projection, model.device, torch.bfloat16 if narrow else torch.float32, lexicon)
    return lambda ids, offsets: gpu.logits(Encoded(torch.from_numpy(ids), offsets))
