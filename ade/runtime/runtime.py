"""The light runtime: a model folder -> labels with numpy, tokenizers and safetensors alone.

For small machines and quick starts: neither torch nor transformers is imported. The scores are computed
from the exact tables of `tables.py`, so predictions are those of the model's own forward pass.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ade.data.problems import CLASSIFIER, SINGLE, check_kind, names_of, problem_of
from ade.data.tokenize import CHUNK, average_windows, split_windows, tokenize
from ade.data.tokenizer_file import read_tokenizer
from ade.errors import InputError
from ade.explanation import TokenContributions
from ade.files import kind_of, model_folder, reading_model
from ade.lexicon import Lexicon, lexicon_of
from ade.predictor import Predictor
from ade.runtime.projection import CACHED_TYPES, Projection
from ade.runtime.stored import read_stored
from ade.runtime.tables import fold
from ade.runtime.threads import ThreadedProjection

ENCODER_TYPES = 2048  # token types whose rows are cached for vectors: the rows are long


class Runtime(Predictor):
    """A trained model ready to predict on a CPU."""

    def __init__(
        self,
        projection: Projection,
        tokenizer: Tokenizer,
        names: tuple[str, ...],
        threads: int = 0,
        problem: str = SINGLE,
        lexicon: Lexicon | None = None,
        label_type: str = "str",
    ) -> None:
        self.projection, self.lexicon = projection, lexicon
        self.tokenizer = tokenizer  # changed below; a copy would double the start-up time
        self.tokenizer.no_padding()
        self.max_tokens = projection.tables.options.max_tokens
        self.tokenizer.enable_truncation(self.longest)
        self._names, self._problem, self._label_type = names, problem, label_type
        self._threaded = ThreadedProjection(projection, threads)
        self._folder: Path | None = None  # set by `load`
        self._encoder: ThreadedProjection | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        return self._names

    @property
    def problem(self) -> str:
        """The kind of problem: one label a text, any number of labels, or regression."""
        return self._problem

    @property
    def label_type(self) -> str:
        """The type in which the labels were given for training: str, int, float or bool."""
        return self._label_type

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of concatenated texts: text i is `ids[offsets[i]:offsets[i + 1]]`, never empty."""
        # Attention runs over windows of a long text, the lexicon over all of it.
        windows, first = split_windows(offsets, self.max_tokens)
        return self._with_lexicon(self._threaded.logits(ids, windows), windows, first, ids, offsets)

    def _with_lexicon(
        self, scores: np.ndarray, windows: np.ndarray, first: np.ndarray, ids: np.ndarray, offsets: np.ndarray
    ) -> np.ndarray:
        """Class scores of texts from those of their windows."""
        if len(scores) > len(first):
            scores = average_windows(scores, windows, first)
        return scores if self.lexicon is None else scores + self.lexicon.logits(ids, offsets)

    def score_steps(self, texts: Sequence[str], tokens: int) -> Iterator[np.ndarray | None]:
        """Compute `predict_scores` in steps of about so many tokens: yields None after each but the last, then them."""
        ids, offsets = tokenize(self.tokenizer, texts, self.longest)
        windows, first = split_windows(offsets, self.max_tokens)
        parts, start, end = [], 0, len(windows) - 1
        yield None
        while start < end:
            stop = min(end, max(start + 1, int(np.searchsorted(windows, windows[start] + tokens, "right")) - 1))
            part = ids[windows[start] : windows[stop]]
            parts.append(self._threaded.logits(part, windows[start : stop + 1] - windows[start]))
            start = stop
            if start < end:
                yield None
        yield self._with_lexicon(np.concatenate(parts), windows, first, ids, offsets)

    def token_contributions(self, ids: np.ndarray) -> TokenContributions:
        """Return what each of at most `max_tokens` tokens adds to the class scores, without the lexicon."""
        self._threaded.after_fork()
        return self.projection.token_contributions(ids)

    def ngram_scores(self) -> Lexicon | None:
        """Return the lexicon; None where the model has none."""
        return self.lexicon

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the classification layer: (n, d), or (d,) for one.

        A text is truncated to `max_tokens` tokens. Scores of a lexicon are not part of the vectors.
        """
        if isinstance(texts, str):
            return self.encode([texts])[0]
        parts = [
            self.pooled_vectors(*tokenize(self.tokenizer, texts[start : start + CHUNK], self.max_tokens, first=start))
            for start in range(0, max(1, len(texts)), CHUNK)
        ]
        return np.concatenate(parts)

    def pooled_vectors(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the pooled vectors (n, d) of n texts of at most `max_tokens` tokens; arguments as of `scores`."""
        if self._encoder is None:
            self.load_encoder(self._folder)
        assert self._encoder is not None
        return self._encoder.logits(ids, offsets)

    def load_encoder(self, folder: Path | None) -> None:
        """Read what vectors need, which is otherwise done when they are first asked for, from the model's folder."""
        if folder is None:
            raise InputError("vectors need the model's folder; load the model from one")
        self._encoder = self._encoder or self._make_encoder(folder)

    def _make_encoder(self, folder: Path) -> ThreadedProjection:
        """Tables of the same model with the identity as its classification layer: its scores are pooled vectors."""
        config, state = read_stored(folder)
        state.pop("classifier.scales", None)
        dim = self.projection.tables.dim
        state |= {"classifier.weight": np.eye(dim, dtype=np.float32), "classifier.bias": np.zeros(dim, np.float32)}
        tables = fold({**config, "problem_type": SINGLE}, state)
        return ThreadedProjection(Projection(tables, ENCODER_TYPES), self._threaded.threads)

    @classmethod
    def load(cls, folder: str | Path, threads: int = 0, cached_types: int = CACHED_TYPES) -> "Runtime":
        """Load a model.

        Args:
            folder: a model folder, or a name on the Hugging Face hub.
            threads: number of threads; 0 for one per core.
            cached_types: number of token types whose rows are cached.
        """
        path = model_folder(folder)
        with reading_model(path):
            check_kind(path, kind_of(path), CLASSIFIER)
            config, state = read_stored(path)
            tables, lexicon = fold(config, state), lexicon_of(config, state)
            names = names_of(config.get("id2label"), tables.labels)
        tokenizer = read_tokenizer(path, tables.vocabulary)
        problem = problem_of(config.get("problem_type"), tables.labels)
        label_type = str(config.get("label_type", "str"))
        runtime = cls(Projection(tables, cached_types), tokenizer, names, threads, problem, lexicon, label_type)
        runtime._folder = path
        return runtime
