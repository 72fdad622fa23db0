"""Classifier: text in, labels and probabilities out; a model folder in, a model folder out."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from ade.data.batches import Encoded, sorted_batches
from ade.data.conll import OUTSIDE, encode_sentences
from ade.data.problems import TAGGER, Tagged, names_of, problem_of
from ade.data.tokenize import CHUNK, read_tokenizer
from ade.devices import resolve_device
from ade.embedding import PackedEmbedding
from ade.errors import InputError, first_line
from ade.files import MARKER, kind_of, model_folder, new_folder, reading_model
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.model_card import write_card
from ade.packing.format import check_finite
from ade.predictor import Predictor
from ade.pretrained import AdePreTrainedModel
from ade.progress import quiet

if TYPE_CHECKING:
    from ade.runtime.dispatch import Scores

Kind = TypeVar("Kind", bound=AdePreTrainedModel)


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
    longest: int  # tokens that are read of a text

    def __init__(self, model: Kind, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # ours to set truncation on
        self.tokenizer.no_padding()
        self.max_tokens = int(model.config.max_tokens)
        self.tokenizer.enable_truncation(self.longest)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, in the order of the scores."""
        return names_of(self.model.config.id2label, self.model.config.num_labels)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder: weights, config, tokenizer, model card."""
        with new_folder(Path(folder), {MARKER}, overwrite) as draft:
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
        self._fast: tuple[list[tuple[int, int]], Scores | None] | None = None

    @property
    def problem(self) -> str:
        """What an answer is: one label, any number of them, or a number."""
        return problem_of(self.model.config.problem_type, self.model.config.num_labels)

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Class scores (n, C) of texts kept end to end: from tables, or by the model itself where there are none."""
        fast = self._fast_path()
        return (
            predict_logits(self.model, Encoded(torch.from_numpy(ids), offsets)) if fast is None else fast(ids, offsets)
        )

    def __getstate__(self) -> dict[str, object]:
        """Tables are made anew where the classifier is unpickled."""
        return {**self.__dict__, "_fast": None}

    def _fast_path(self) -> "Scores | None":
        """The model folded into tables, again whenever a weight has changed (not by way of `.data`, which hides it)."""
        from ade.runtime.dispatch import fast_path  # training never needs it

        tensors = chain(self.model.parameters(), self.model.buffers())
        state = [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]
        if self._fast is None or self._fast[0] != state:
            self._fast = (state, fast_path(self.model, self.tokenizer))
        return self._fast[1]


class Tagger(Stored[AdeForTokenClassification]):
    """A trained model that gives every word a tag, with its tokenizer."""

    kind = AdeForTokenClassification

    @property
    def longest(self) -> int:  # type: ignore[override]
        """Tokens that are read of a sentence."""
        return self.max_tokens

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[list[str]]:
        """The tag of each word of each sentence: words as they are given, or as a string has spaces between them.

        Words the model does not see (past its longest text, or none of the tokenizer's) are outside of everything: `O`,
        or the first tag where there is no `O`.
        """
        names = self.names
        return [[names[tag] for tag in tags] for tags in self.tags(sentences)]

    def stream(self, sentences: Iterable[str]) -> Iterator[Tagged]:
        """Words and tags of each sentence of a stream of any length, in order, in flat memory."""
        source = iter(sentences)
        while chunk := [sentence.split() for sentence in islice(source, CHUNK)]:
            yield from map(Tagged, chunk, self.predict(chunk))

    def tags(self, sentences: Sequence[str | Sequence[str]]) -> list[np.ndarray]:
        """The same as numbers of `names`."""
        if isinstance(sentences, str):
            raise InputError("give a list of sentences, each a string or a list of words")
        split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in sentences]
        if not split:
            return []
        texts, words = encode_sentences(self.tokenizer, split, self.max_tokens)
        best = predict_tags(self.model, texts)  # (total,)
        names = self.names
        outside = names.index(OUTSIDE) if OUTSIDE in names else 0
        found = []
        for i, sentence in enumerate(split):
            part = slice(texts.offsets[i], texts.offsets[i + 1])
            tags, own = np.full(len(sentence), outside), words[part]
            tags[own[own >= 0]] = best[part][own >= 0]
            found.append(tags)
        return found


@torch.inference_mode()
def predict_tags(model: AdeForTokenClassification, texts: Encoded) -> np.ndarray:
    """The likeliest tag of every token, in order; the model is put in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    found = np.empty(len(texts.ids), dtype=np.int64)
    for rows in sorted_batches(texts.lengths):
        ids, mask = texts.padded(rows)
        best, real = model(ids, mask).logits.argmax(2).cpu().numpy(), mask.cpu().numpy()  # (B, L)
        for row, own, there in zip(rows, best, real, strict=True):
            found[texts.offsets[row] : texts.offsets[row + 1]] = own[there]
    return found


def write_model(model: AdePreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the files of a model folder into a folder as it is: weights, config, tokenizer, model card."""
    check_finite(model.arrays())  # before packing: whole numbers would hide it
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
        check_finite(model.arrays())
        if isinstance(model.base_model.embedding, PackedEmbedding):
            model.base_model.embedding.starts()  # what is damaged is refused now
    return model.to(resolve_device(device)), read_tokenizer(path / "tokenizer.json", model.config.vocab_size)


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
    special.setdefault("pad_token", _padding(tokenizer))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=max_length, **special)


def _padding(tokenizer: Tokenizer) -> str:
    """A token to pad with where none is called so: a special one, or one whose spelling is found in no text.

    Which one does not matter, padding is masked; but transformers looks for special tokens in a text before all others.
    So of tokens that are not what their spelling is cut into, like '##ing', the longest; among plain words one will do
    that is special only as a whole word.
    """
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]
    if special:
        return special[0]
    places = tokenizer.get_vocab()
    longest = sorted(places, key=lambda token: (-len(token), places[token]))
    marked = (token for token in longest if tokenizer.encode(token, add_special_tokens=False).ids != [places[token]])
    chosen = next(marked, min(places, key=places.__getitem__))
    tokenizer.add_special_tokens([AddedToken(chosen, single_word=True, normalized=False, special=True)])
    return chosen
