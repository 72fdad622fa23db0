"""Classifier: text in, labels and probabilities out; a model folder in, a model folder out."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import overload

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ade.batching import Encoded, encode, sorted_batches
from ade.distillation import resolve_device
from ade.errors import InputError
from ade.folders import check_free, new_folder
from ade.model import AdeForSequenceClassification
from ade.teachers import read_tokenizer

MARKER = "config.json"
CHUNK = 4096  # texts held at once while streaming


@torch.inference_mode()
def predict_logits(model: AdeForSequenceClassification, texts: Encoded) -> np.ndarray:
    """Class scores of every text, in order; the model is put in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    logits = torch.empty(len(texts), model.config.num_labels, device=model.device)  # (n, C)
    for rows in sorted_batches(texts.lengths):
        ids, mask = texts.padded(rows)
        logits[torch.from_numpy(rows).to(model.device)] = model(ids, mask).logits.float()
    return logits.cpu().numpy()


class Classifier:
    """A trained model with its tokenizer."""

    def __init__(self, model: AdeForSequenceClassification, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # ours to set truncation on
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(model.config.max_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the probabilities."""
        labels = self.model.config.id2label
        return tuple(labels[i] for i in range(len(labels)))

    @overload
    def predict(self, texts: str) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: Sequence[str]) -> list[str]: ...
    def predict(self, texts: str | Sequence[str]) -> str | list[str]:
        """The most probable label of a text, or of each of many, in order."""
        best = self.predict_proba(texts).argmax(-1)
        return self.names[best] if isinstance(texts, str) else [self.names[i] for i in best]

    def predict_proba(self, texts: str | Sequence[str]) -> np.ndarray:
        """Probabilities of the labels: (C,) for a text, (n, C) for many. Long texts are cut, empty ones allowed."""
        if isinstance(texts, str):
            return self.predict_proba([texts])[0]
        encoded = encode(self.tokenizer, texts, self.model.config.max_tokens)
        scores = predict_logits(self.model, encoded)
        scores = np.exp(scores - scores.max(1, keepdims=True, initial=-np.inf))
        return scores / scores.sum(1, keepdims=True)

    def stream(self, texts: Iterable[str]) -> Iterator[tuple[str, float]]:
        """(label, probability) of each text of a stream of any length, in order, in flat memory."""
        source = iter(texts)
        while chunk := list(islice(source, CHUNK)):
            chances = self.predict_proba(chunk)
            best = chances.argmax(1)
            yield from zip((self.names[i] for i in best), chances[np.arange(len(best)), best].tolist(), strict=True)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder: weights, config, tokenizer."""
        folder = Path(folder)
        check_free(folder, {MARKER}, overwrite)
        with new_folder(folder) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a model folder into a folder as it is."""
        with quiet():
            self.model.save_pretrained(folder)
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.no_truncation()
        _wrapped(plain, self.model.config.max_tokens).save_pretrained(folder)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Classifier":
        """Read a model folder (safetensors only, no remote code)."""
        path = Path(folder)
        if not (path / MARKER).is_file():
            raise InputError(f"{path}: not a model folder (no {MARKER}); make one with 'ade train'")
        if not (path / "tokenizer.json").is_file():
            raise InputError(f"{path}: has no tokenizer.json")
        try:
            with quiet():
                model, found = AdeForSequenceClassification.from_pretrained(
                    path, use_safetensors=True, output_loading_info=True
                )
        except InputError:
            raise
        except Exception as error:  # whatever transformers and safetensors make of a foreign or broken folder
            raise InputError(f"{path}: not a readable ADE model ({str(error).splitlines()[0]})") from None
        if model.config.model_type != "ade" or any(found.values()):
            raise InputError(f"{path}: not an ADE model, or its weights are not those its config describes")
        return cls(model.to(resolve_device(device)), read_tokenizer(path / "tokenizer.json"))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own progress bars and reports off the terminal."""
    shown, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()


def _wrapped(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers knows it, with the special tokens it can be seen to have."""
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
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **special)
