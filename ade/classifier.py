"""Classifier and Tagger: a model with its tokenizer; text in, labels and probabilities out; save and load folders."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from ade.data.batches import Encoded, sorted_batches
from ade.data.conll import OUTSIDE
from ade.data.problems import Tagged, check_kind, names_of, problem_of, scale_of
from ade.data.tag_tokens import encode_sentences
from ade.data.tokenize import CHUNK, truncating
from ade.data.tokenizer_file import read_tokenizer
from ade.devices import resolve_device
from ade.embedding import TensorCache
from ade.errors import InputError, first_line
from ade.explanation import TokenContributions
from ade.files import MARKER, kind_of, model_folder, new_folder, reading_model
from ade.lexicon import Lexicon
from ade.model import AdeForSequenceClassification, AdeForTokenClassification
from ade.model_card import write_card
from ade.packing.format import check_finite
from ade.predictor import Predictor
from ade.pretrained import AdePreTrainedModel
from ade.progress import quiet
from ade.tokenizer import write_for_transformers

if TYPE_CHECKING:
    from ade.runtime.dispatch import Scores

Kind = TypeVar("Kind", bound=AdePreTrainedModel)


@torch.inference_mode()
def predict_logits(model: AdeForSequenceClassification, texts: Encoded) -> np.ndarray:
    """Return the class scores (n, C) of texts, by the model's forward pass; puts the model in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    logits = torch.empty(len(texts), model.config.num_labels, device=model.device)  # (n, C)
    for rows in sorted_batches(texts.lengths):
        ids, mask = texts.padded(rows)
        logits[torch.from_numpy(rows).to(model.device)] = model(ids, mask).logits.float()
    return logits.cpu().numpy()


@torch.inference_mode()
def pooled_contributions(model: AdeForSequenceClassification, ids: Tensor) -> TokenContributions:
    """Return pooling weight times class scores of each token of one text, ids (1, L), by the model's own layers."""
    model.eval()
    ids = ids.to(model.device)
    mask = torch.ones_like(ids, dtype=torch.bool)
    states, real = model.ade.states(ids, mask)  # (1, T, d), (1, T)
    weights = model.pooling_weights(states, real)[0].float()  # (T,)
    bias = model.classifier(torch.zeros_like(states[0, 0])).float()  # (C,)
    mean, deviation = scale_of(model.config.problem_type, model.config.scale)
    contributions = weights.unsqueeze(1) * (model.classifier(states)[0].float() - bias) * deviation  # (T, C)

    if model.config.attend == "anchors":  # a token has several elements
        token = model.ade.embedding.expand(ids, mask).word[0]  # (T,)
        weights = weights.new_zeros(ids.shape[1]).index_add(0, token, weights)
        contributions = contributions.new_zeros(ids.shape[1], len(bias)).index_add(0, token, contributions)
    arrays = (weights, contributions, bias * deviation + mean)
    return TokenContributions(*(array.cpu().numpy() for array in arrays))


class Stored(Generic[Kind]):
    """A model with its tokenizer, and how they are saved to and loaded from a model folder."""

    kind: type[Kind]
    longest: int  # tokens a text is truncated to

    def __init__(self, model: Kind, tokenizer: Tokenizer) -> None:
        self.model = model.eval()
        self.max_tokens = int(model.config.max_tokens)
        self.tokenizer = truncating(tokenizer, self.longest)

    @property
    def names(self) -> tuple[str, ...]:
        """Label names, in the order of the columns of scores."""
        return names_of(self.model.config.id2label, self.model.config.num_labels)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write a complete model folder: weights, config, tokenizer, model card."""
        with new_folder(Path(folder), {MARKER}, overwrite) as draft:
            self.write(draft)

    def write(self, folder: Path) -> None:
        """Write the files of a model folder into an existing folder."""
        write_model(self.model, self.tokenizer, folder)

    def push_to_hub(self, name: str, private: bool = False, token: str | None = None) -> str:
        """Upload the model folder to the Hugging Face hub, to a new repository if needed, and return its address."""
        from huggingface_hub import HfApi

        api = HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.write(Path(folder))
            try:
                repository = api.create_repo(name, private=private, exist_ok=True)
                api.upload_folder(repo_id=repository.repo_id, folder_path=folder, commit_message="Upload an ADE model")
            except Exception as error:  # no such right, no network, a name the hub does not take
                raise InputError(f"{name}: cannot be uploaded ({first_line(error)})") from None
        return str(repository)

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """Load a model folder or a model on the hub (safetensors only, no remote code)."""
        return cls(*load_model(cls.kind, folder, device))

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str = "auto") -> Self:
        """Load a model folder or a model on the hub: `load` by the name it has in transformers."""
        return cls.load(folder, device)


class Classifier(Stored[AdeForSequenceClassification], Predictor):
    """A trained text classifier with its tokenizer."""

    kind = AdeForSequenceClassification

    def __init__(self, model: AdeForSequenceClassification, tokenizer: Tokenizer) -> None:
        super().__init__(model, tokenizer)
        self._fast: TensorCache[Scores | None] = TensorCache()
        self._lexicon: TensorCache[Lexicon] = TensorCache()

    @property
    def problem(self) -> str:
        """What is predicted for a text: one label, any number of labels, or a number."""
        return problem_of(self.model.config.problem_type, self.model.config.num_labels)

    @property
    def label_type(self) -> str:
        """The type in which the labels were given for training: str, int, float or bool."""
        return str(self.model.config.label_type)

    def scores(self, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """Return the class scores (n, C) of n texts; the tokens of text i are `ids[offsets[i]:offsets[i + 1]]`.

        They are computed from tables made of the model's weights (`ade/runtime`); where the model cannot be turned
        into tables, by its forward pass.
        """
        from ade.runtime.dispatch import fast_path  # imported here because training never needs it

        tensors = chain(self.model.parameters(), self.model.buffers())
        fast = self._fast.get(tensors, lambda: fast_path(self.model, self.tokenizer))
        if fast is None:
            return predict_logits(self.model, Encoded(torch.from_numpy(ids), offsets))
        return fast(ids, offsets)

    def token_contributions(self, ids: np.ndarray) -> TokenContributions:
        """Return what each of at most `max_tokens` tokens adds to the class scores, without the lexicon."""
        return pooled_contributions(self.model, torch.from_numpy(ids).long().unsqueeze(0))

    def ngram_scores(self) -> Lexicon | None:
        """Return the lexicon; None where the model has none."""
        layer = self.model.lexicon
        return None if layer is None else self._lexicon.get(layer.buffers(), layer.unpacked)

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return the pooled vector of each text, the input of the classification layer: (n, d), or (d,) for one."""
        from ade.integrations.vectors import pooled_vectors

        return pooled_vectors(self, [texts])[0] if isinstance(texts, str) else pooled_vectors(self, texts)


class Tagger(Stored[AdeForTokenClassification]):
    """A trained model that predicts a tag for every word, with its tokenizer."""

    kind = AdeForTokenClassification

    @property
    def longest(self) -> int:  # type: ignore[override]
        """The number of tokens a sentence is truncated to."""
        return self.max_tokens

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[list[str]]:
        """Predict the tag of each word of each sentence; a sentence is a list of words, or a string split at spaces.

        Words without a token (beyond the truncation, or unknown to the tokenizer) get the tag `O`, or the first tag
        where there is no `O`.
        """
        names = self.names
        return [[names[tag] for tag in tags] for tags in self.tags(sentences)]

    def stream(self, sentences: Iterable[str]) -> Iterator[Tagged]:
        """Yield words and tags of each sentence of an iterable, in order; only a chunk is held in memory."""
        source = iter(sentences)
        while chunk := [sentence.split() for sentence in islice(source, CHUNK)]:
            yield from map(Tagged, chunk, self.predict(chunk))

    def tags(self, sentences: Sequence[str | Sequence[str]]) -> list[np.ndarray]:
        """Predict tags as `predict` does, but return their indices in `names`."""
        if isinstance(sentences, str):
            raise InputError("give a list of sentences, each a string or a list of words")
        split = [sentence.split() if isinstance(sentence, str) else list(sentence) for sentence in sentences]
        if not split:
            return []
        texts, words = encode_sentences(self.tokenizer, split, self.max_tokens)
        best = predict_tags(self.model, texts)  # (number of tokens,)

        # A word has the tag of the token that stands for it; the other tokens have word -1.
        names = self.names
        outside = names.index(OUTSIDE) if OUTSIDE in names else 0
        predicted = []
        for i, sentence in enumerate(split):
            tokens = slice(texts.offsets[i], texts.offsets[i + 1])
            word, tag = words[tokens], best[tokens]
            tags = np.full(len(sentence), outside)
            tags[word[word >= 0]] = tag[word >= 0]
            predicted.append(tags)
        return predicted


@torch.inference_mode()
def predict_tags(model: AdeForTokenClassification, texts: Encoded) -> np.ndarray:
    """Return the most probable tag of every token, in order; puts the model in evaluation mode."""
    model.eval()
    texts = texts.to(model.device)
    tags = np.empty(len(texts.ids), dtype=np.int64)
    for rows in sorted_batches(texts.lengths):
        ids, mask = texts.padded(rows)
        best, real = model(ids, mask).logits.argmax(2).cpu().numpy(), mask.cpu().numpy()  # (B, L)
        for row, best_of_row, real_of_row in zip(rows, best, real, strict=True):
            tags[texts.offsets[row] : texts.offsets[row + 1]] = best_of_row[real_of_row]
    return tags


def write_model(model: AdePreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights, config, tokenizer and model card into an existing folder."""
    check_finite(model.arrays())  # before packing, which would turn NaN into an integer
    with quiet():
        packed = model.packed()
        packed.save_pretrained(folder)
    write_card(folder, packed.config)
    write_for_transformers(tokenizer, folder, model.config.max_tokens, packed=bool(model.config.packing))


def load_model(kind: type[Kind], source: str | Path, device: str) -> tuple[Kind, Tokenizer]:
    """Load the model of a folder or hub name, and its tokenizer; raises `InputError` for anything else or damaged."""
    path = model_folder(source)
    check_kind(path, kind_of(path), kind.__name__)

    with reading_model(path), quiet():
        model, mismatches = kind.from_pretrained(
            path, use_safetensors=True, output_loading_info=True, trust_remote_code=False
        )
    if model.config.model_type != "ade" or any(mismatches.values()):
        raise InputError(f"{path}: not an ADE model, or its weights are not those its config describes")

    with reading_model(path):
        check_finite(model.arrays())
        model.base_model.embedding.check()

    return model.to(resolve_device(device)), read_tokenizer(path, model.config.vocab_size)
