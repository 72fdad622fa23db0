"""AdeTokenizer: the tokenizer of a model folder for transformers, where its file is packed."""

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import AutoTokenizer

from ade.huggingface_config import AdeConfig
from ade.packing.tokenizer_file import PACKED, packed_bytes, read_packed


class AdeTokenizer(PreTrainedTokenizerFast):
    """The tokenizer of a packed model, which has a packed file in place of `tokenizer.json`."""

    vocab_files_names = {"packed_file": PACKED}  # noqa: RUF012 - the library's own form

    def __init__(self, *args: Any, packed_file: str | None = None, **kwargs: Any) -> None:
        if packed_file is not None:
            kwargs["tokenizer_object"] = read_packed(Path(packed_file))
        super().__init__(*args, **kwargs)

    def _save_pretrained(self, save_directory: str, file_names: tuple[str, ...], *_: Any, **__: Any) -> tuple[str, ...]:
        """Write the packed file, where transformers would write `tokenizer.json`."""
        path = Path(save_directory) / PACKED
        path.write_bytes(packed_bytes(self.backend_tokenizer))
        return (*file_names, str(path))


AutoTokenizer.register(AdeConfig, AdeTokenizer)
