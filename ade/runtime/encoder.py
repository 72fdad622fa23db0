"""RuntimeEncoder: an encoder folder -> vectors with numpy, tokenizers and safetensors alone, by exact tables.

One layer is a look-up a token, one matrix product for attention scores and one for the attention output; pooling comes
before the last map, so that is one product a text.
"""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ade.data.problems import ENCODER, check_kind
from ade.data.tokenizer_file import read_tokenizer
from ade.encoder import Encoder
from ade.files import kind_of, model_folder, reading_model
from ade.runtime.projection import Projection
from ade.runtime.stored import read_stored
from ade.runtime.tables import fold
from ade.runtime.threads import ThreadedProjection

CACHED_TYPES = 8192  # token types whose rows are kept: some thousand numbers each


class RuntimeEncoder(Encoder):
    """A trained encoder on a CPU."""

    def __init__(self, projection: Projection, tokenizer: Tokenizer, threads: int = 0) -> None:
        self.projection = ThreadedProjection(projection, threads)
        self.dim = projection.tables.labels
        self.max_tokens = self.longest = projection.tables.options.max_tokens
        self.tokenizer = tokenizer  # changed below; a copy would double the start-up time
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_tokens)

    def vectors(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return vectors (n, D) of any length; the tokens of text i are `ids[offsets[i]:offsets[i + 1]]`."""
        return self.projection.logits(ids, offsets)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", threads: int = 0) -> "RuntimeEncoder":
        """Load an encoder folder or an encoder on the hub, for the CPU."""
        path = model_folder(folder)
        with reading_model(path, "ade distill-encoder"):
            check_kind(path, kind_of(path), ENCODER)
            config, state = read_stored(path)
            tables = fold(config, state)
        tokenizer = read_tokenizer(path, tables.vocabulary)
        return cls(Projection(tables, CACHED_TYPES), tokenizer, threads)
