"""The tokenizer of a model folder, written so that transformers can load it; AdeTokenizer reads a packed one."""

import os
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import AutoTokenizer

from ade.configuration import AdeConfig
from ade.data.tokenizer_file import PACKED, read_packed, write_tokenizer


class AdeTokenizer(PreTrainedTokenizerFast):
    """The tokenizer of a packed model, which has a packed file in place of `tokenizer.json`."""

    vocab_files_names = {"packed_file": PACKED}  # noqa: RUF012 - the library's own form

    def __init__(self, *args: Any, packed_file: str | None = None, **kwargs: Any) -> None:
        if packed_file is not None:
            kwargs["tokenizer_object"] = read_packed(Path(packed_file))
        super().__init__(*args, **kwargs)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        """Write the packed file, where transformers would write `tokenizer.json`."""
        write_tokenizer(self.backend_tokenizer, Path(save_directory), packed=True)
        return (*file_names, str(Path(save_directory) / PACKED))


def write_for_transformers(tokenizer: Tokenizer, folder: Path, max_length: int, packed: bool) -> None:
    """Write the tokenizer file of a model folder, and `tokenizer_config.json` for transformers."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    wrapped = (AdeTokenizer if packed else PreTrainedTokenizerFast)(
        tokenizer_object=plain, model_max_length=max_length, **_special_tokens(plain)
    )
    wrapped.save_pretrained(folder)
    if not packed:
        write_tokenizer(wrapped.backend_tokenizer, folder, packed=False)  # again: transformers indents tokenizer.json


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens that transformers asks for, found by their usual spellings; always one for padding."""
    known = tokenizer.get_vocab(with_added_tokens=True)
    usual = {
        "pad_token": ("[PAD]", "<pad>", "<unk>", "[UNK]"),
        "unk_token": ("[UNK]", "<unk>"),
        "cls_token": ("[CLS]",),
        "sep_token": ("[SEP]",),
        "mask_token": ("[MASK]", "<mask>"),
        "bos_token": ("<s>",),
        "eos_token": ("</s>",),
    }
    found = {kind: next((token for token in tokens if token in known), None) for kind, tokens in usual.items()}
    special = {kind: token for kind, token in found.items() if token is not None}
    special.setdefault("pad_token", _pad_token(tokenizer))
    return special


def _pad_token(tokenizer: Tokenizer) -> str:
    """Choose a token for padding in a tokenizer that names none: a special token, or one that occurs in no text.

    Padding is masked, so any token does for the model. But transformers splits texts at special tokens before it
    tokenizes the rest, so the spelling should be one that texts do not contain: the longest token whose spelling is not
    tokenized to itself, like '##ing'; where there is none, any token, matched as a whole word only.
    """
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]
    if special:
        return special[0]

    ids = tokenizer.get_vocab()
    longest_first = sorted(ids, key=lambda token: (-len(token), ids[token]))
    unspelled = (
        token for token in longest_first if tokenizer.encode(token, add_special_tokens=False).ids != [ids[token]]
    )
    chosen = next(unspelled, min(ids, key=ids.__getitem__))
    tokenizer.add_special_tokens([AddedToken(chosen, single_word=True, normalized=False, special=True)])
    return chosen


AutoTokenizer.register(AdeConfig, AdeTokenizer)
