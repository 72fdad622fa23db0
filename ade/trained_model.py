"""What Classifier, Tagger and Encoder share: a model as it was read, and the backend that computes its numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from ade.backends import Backend, backend_for
from ade.data.tokens import LEXICON_TOKENS, truncating
from ade.errors import InputError
from ade.folder import Saved


class TrainedModel:
    """A model ready to use."""

    kind: ClassVar[str]

    def __init__(self, saved: Saved, backend: Backend | None = None) -> None:
        self.saved = saved
        self.backend = backend_for(saved) if backend is None else backend
        self.tokenizer = saved.tokenizer
        if self.tokenizer.truncation is None and self.tokenizer.padding is None:
            self.tokenizer.enable_truncation(self.tokens_read)  # in place: a copy would double the start-up time
        else:  # another model has it, too
            self.tokenizer = truncating(saved.tokenizer, self.tokens_read)

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that attention reads."""
        return self.saved.config.max_tokens

    @property
    def tokens_read(self) -> int:
        """Tokens of a text that are read at all: a lexicon reads more than attention."""
        return self.max_tokens if self.saved.lexicon is None else max(self.max_tokens, LEXICON_TOKENS)

    @property
    def metadata(self) -> dict[str, Any]:
        """What is known of the model: its teacher, data and metrics."""
        return dict(self.saved.config.metadata)

    @classmethod
    def load(cls, source: str | Path, device: str = "cpu", threads: int = 0, **download: Any) -> Self:
        """Load a model folder or a model on the hub (safetensors and JSON only, no remote code).

        `threads` are those of a CPU, 0 for one per core; `download` are arguments for the hub, as `revision`.
        """
        saved = Saved.read(source, cls.kind, **download)
        return cls(saved, backend_for(saved, device, threads))

    from_pretrained = load  # the name it has in transformers

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder."""
        self.saved.save(folder, overwrite)

    def push_to_hub(self, name: str, private: bool = False, token: str | None = None) -> str:
        """Upload the model folder to the Hugging Face hub, to a new repository if needed, and return its address."""
        return self.saved.push_to_hub(name, private, token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.saved.table})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without tables and caches; the copy runs on the CPU."""
        return type(self), (self.saved,)


def check_texts_given(texts: Any) -> None:
    """Raise `InputError` for what is no list of texts."""
    if not isinstance(texts, Sequence) and not hasattr(texts, "__len__"):
        raise InputError(f"give a text or a list of texts, not {texts!r:.40}")
