"""Classifier: text in, labels and probabilities out; a model folder in, a model folder out."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ade import kernels
from ade.accelerated import Accelerated
from ade.answers import TAGGER, names_of, problem_of
from ade.batching import Encoded, sorted_batches
from ade.cards import write_card
from ade.embedding import PackedEmbedding
from ade.errors import InputError, first_line
from ade.folders import MARKER, check_free, kind_of, model_folder, new_folder
from ade.model import AdeForSequenceClassification, AdePreTrainedModel
from ade.predictor import Predictor, read_tokenizer, reading_model
from ade.projection import Projection
from ade.pursuit import resolve_device
from ade.runtime import Runtime

Kind = TypeVar("Kind", bound=AdePreTrainedModel)
CACHED_TYPES = 65_536  # beside torch memory matters less: more token types are kept than in the light runtime


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


class Stored(Generic[Kind]):
    """A model with its tokenizer, as a model folder holds them."""

    kind: type[Kind]

    def __init__(self, model: Kind, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # ours to set truncation on
        self.tokenizer.no_padding()
        self.max_tokens = int(model.config.max_tokens)
        self.tokenizer.enable_truncation(self.max_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the scores."""
        return names_of(self.model.config.id2label, self.model.config.num_labels)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder: weights, config, tokenizer, model card."""
        folder = Path(folder)
        check_free(folder, {MARKER}, overwrite)
        with new_folder(folder) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a model folder into a folder as it is."""
        write_model(self.model, self.tokenizer, folder)

    def push_to_hub(self, name: str, private: bool = False, token: str | None = None) -> str:
        """Put all of it on the Hugging Face hub, into a repository made where there is none, and give its address."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            try:
                place = api.create_repo(name, private=private, exist_ok=True)
                api.upload_folder(repo_id=place.repo_id, folder_path=folder, commit_message="Upload an ADE model")
            except Exception as error:  # no such right, no network, a name the hub does not take
                raise InputError(f"{name}: cannot be uploaded ({first_line(error)})") from None
        return str(place)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """Read a model folder, or one on the hub (safetensors only, no remote code)."""
        return cls(*load_model(cls.kind, folder, device))


class Classifier(Stored[AdeForSequenceClassification], Predictor):
    """A trained model with its tokenizer."""

    kind = AdeForSequenceClassification

    def __init__(self, model: AdeForSequenceClassification, tokenizer: Tokenizer) -> None:
        super().__init__(model, tokenizer)
        self._folded: tuple[list[tuple[int, int]], Runtime | Accelerated | None] | None = None

    @property
    def problem(self) -> str:
        """What an answer is: one label, any number of them, or a number."""
        return problem_of(self.model.config.problem_type, self.model.config.num_labels)

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end: from tables, or by the model itself where there are none."""
        fast = self._projected()
        if isinstance(fast, Runtime):
            return fast.scores(ids, offsets)
        texts = Encoded(torch.from_numpy(ids), offsets)
        return predict_logits(self.model, texts) if fast is None else fast.logits(texts)

    def __getstate__(self) -> dict[str, object]:
        """Tables are made anew where the classifier is unpacked."""
        return {**self.__dict__, "_folded": None}

    def _projected(self) -> Runtime | Accelerated | None:
        """The model folded into tables, again whenever a weight has changed (not by way of `.data`, which hides it)."""
        tensors = chain(self.model.parameters(), self.model.buffers())
        state = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if self._folded is None or self._folded[0] != state:
            stored = self.model.packed()  # as it will be, where it is only rounded so far
            projection = Projection(stored.config.to_dict(), stored.arrays(), CACHED_TYPES)
            fast: Runtime | Accelerated | None = None
            if self.model.device.type == "cpu":
                fast = Runtime(projection, self.tokenizer, self.names, problem=self.problem)
            elif kernels.available and Accelerated.fits(projection):
                narrow = torch.cuda.is_bf16_supported(including_emulation=False)
                fast = Accelerated(projection, self.model.device, torch.bfloat16 if narrow else torch.float32)
            self._folded = (state, fast)
        return self._folded[1]


def write_model(model: AdePreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files of a model folder into a folder as it is: weights, config, tokenizer, model card."""
    with quiet():
        packed = model.packed()
        packed.save_pretrained(folder)
    write_card(folder, packed.config)
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    _wrapped(plain, model.config.max_tokens).save_pretrained(folder)
    written = folder / "tokenizer.json"  # transformers indents it, to more than twice the size
    compact = json.dumps(json.loads(written.read_text("utf8")), ensure_ascii=False, separators=(",", ":"))
    written.write_text(compact, "utf8")


def load_model(kind: type[Kind], source: str | Path, device: str) -> tuple[Kind, Tokenizer]:
    """The model of a folder, and its tokenizer; whatever is damaged or of another kind is one clear error."""
    path = model_folder(source)
    if kind_of(path) == TAGGER != kind.__name__:
        raise InputError(f"{path}: a tagger, which answers for every word; a classifier of texts is needed here")
    with reading_model(path), quiet():
        model, found = kind.from_pretrained(path, use_safetensors=True, output_loading_info=True)
    if model.config.model_type != "ade" or any(found.values()):
        raise InputError(f"{path}: not an ADE model, or its weights are not those its config describes")
    with reading_model(path):
        if isinstance(model.base_model.embedding, PackedEmbedding):
            model.base_model.embedding.starts()  # what is damaged is refused now
    return model.to(resolve_device(device)), read_tokenizer(path / "tokenizer.json", model.config.vocab_size)


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
