"""Knowledge distillation from a fine-tuned encoder: its class probabilities as soft targets (`--distill-from`).

The teacher may be any Hugging Face sequence classifier (an ADE model too), with its own tokenizer. Its probabilities
for a list of texts are cached, so a second run with other settings does not compute them again.
"""

import contextlib
import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ade.configuration import CLASSIFIER, KINDS, check_kind
from ade.data.batches import padded_batches
from ade.data.dataset import Dataset
from ade.data.tokens import tokenize
from ade.devices import resolve_device
from ade.errors import InputError, first_line
from ade.files import cache_folder, kind_of, new_file
from ade.progress import Report, quiet, silent

TEXTS = 320_000  # to label: so many variants are made of each text
MAX_VARIANTS = 20  # of a text
MAX_TOKENS = 256  # per text


class LabelTeacher:
    """A sequence classifier that gives class probabilities of texts, its classes reordered to those of a dataset."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, order: np.ndarray, named: bool = True) -> None:
        """Class i of the dataset is class order[i] of the model; `named` says that they were matched by name."""
        self.model, self.tokenizer, self.order, self.named = model.eval(), tokenizer, order, named

    @classmethod
    def load(cls, source: str | Path, names: Sequence[str], device: str = "auto") -> "LabelTeacher":
        """Load a classifier with the classes `names` from a folder or the hub (safetensors only, no remote code)."""
        if Path(source).is_dir():
            kind = kind_of(source)
            check_kind(source, kind if kind in KINDS else CLASSIFIER, CLASSIFIER)
        try:
            with quiet():
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    source, use_safetensors=True, output_loading_info=True, trust_remote_code=False
                )
                tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        except InputError:
            raise
        except Exception as error:  # transformers and safetensors raise many kinds
            raise InputError(f"{source}: not a readable sequence classifier ({first_line(error)})") from None
        if loading["missing_keys"]:
            raise InputError(f"{source}: an encoder without a trained classifier on it; fine-tune it first")
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise InputError(f"{source}: its tokenizer has no tokenizer.json; save it with a fast tokenizer")
        plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        plain.no_padding()
        order, named = _matched(model.config.id2label, names, source)
        return cls(model.to(resolve_device(device)), plain, order, named)

    def probabilities(self, texts: Sequence[str], report: Report = silent) -> np.ndarray:
        """Return class probabilities of the texts, (n, C), from the cache if they were computed before."""
        path = cache_folder() / f"{self._digest(texts)}.npy"
        with contextlib.suppress(OSError, ValueError, EOFError):  # none, or damaged
            cached = np.load(path)
            if cached.shape == (len(texts), len(self.order)):
                return cached.astype(np.float32)

        predicted = self._predict(texts, report).astype(np.float16)
        with contextlib.suppress(OSError):  # a run does not fail because the cache cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as draft, draft.open("wb") as file:
                np.save(file, predicted)
        return predicted.astype(np.float32)  # rounded to float16 as the cached ones, so that runs are the same

    @torch.inference_mode()
    def _predict(self, texts: Sequence[str], report: Report) -> np.ndarray:
        device = next(self.model.parameters()).device
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS
        max_length = min(MAX_TOKENS, positions) if positions > 0 else MAX_TOKENS  # -1 or 0: no limit
        padding = getattr(self.model.config, "pad_token_id", None)
        if padding is None and not hasattr(self.model, "ade"):
            raise InputError("the teacher has no pad_token_id, so it cannot predict batches of texts")

        tokens = tokenize(self.tokenizer, texts, max_length)
        probabilities = np.empty((len(tokens), len(self.order)), dtype=np.float32)  # (n, C)
        done, batch_tokens = 0, 65536 if device.type == "cuda" else 8192
        for rows, ids, mask in padded_batches(tokens, device, batch_tokens, padding or 0):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = self.model(input_ids=ids, attention_mask=mask.long()).logits
            probabilities[rows] = logits.float().softmax(1).cpu().numpy()[:, self.order]
            done += len(rows)
            report("teacher", done, len(tokens), {})
        if not np.isfinite(probabilities).all():
            raise InputError("the teacher's probabilities are not finite: its weights are damaged, or it diverged")
        return probabilities

    def _digest(self, texts: Sequence[str]) -> str:
        """A hash of the teacher and the texts: the name of their cache file."""
        digest = hashlib.sha256(repr((MAX_TOKENS, self.order.tolist())).encode())
        digest.update(self.tokenizer.to_str().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for text in texts:
            encoded = text.encode("utf8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()[:32]


def _matched(id2label: dict[int, str], names: Sequence[str], source: str | Path) -> tuple[np.ndarray, bool]:
    """The teacher's class id of each of `names`, (C,): by name, or by number where its classes have no names."""
    if len(id2label) != len(names):
        raise InputError(f"{source}: has {len(id2label)} classes, the data has {len(names)}")
    if len(set(names)) < len(names):
        raise InputError("the data has two classes of the same name, so they cannot be matched with the teacher's")
    if all(name == f"LABEL_{i}" for i, name in id2label.items()):  # the defaults of transformers
        return np.arange(len(names)), False
    label2id = {name: i for i, name in id2label.items()}
    missing = [name for name in names if name not in label2id]
    if missing:
        raise InputError(f"{source}: does not know the class '{missing[0]}'; it has {', '.join(list(label2id)[:5])}")
    return np.array([label2id[name] for name in names]), True


def with_soft_targets(
    data: Dataset,
    teacher: LabelTeacher,
    unlabelled: Sequence[str] = (),
    report: Report = silent,
) -> Dataset:
    """Return a dataset with soft targets from a teacher, augmented by unlabelled texts and by variants of all texts.

    The targets of labelled rows are the mean of the label and the teacher's probabilities. Split validation rows off
    before calling this.
    """
    texts, added = list(data.texts), list(unlabelled)
    variants = min(MAX_VARIANTS, round(TEXTS / max(1, len(texts) + len(added))))
    known = set(texts + added)
    added += [text for text in dict.fromkeys(variants_of(texts + added, variants)) if text and text not in known]

    # Classes matched by number may be in another order: then teacher and labels disagree.
    targets = teacher.probabilities(texts + added, report)  # (n, C)
    labelled = slice(len(texts))
    agreement = float((targets[labelled].argmax(1) == data.labels).mean())
    if not teacher.named and agreement < (1 + 1 / len(data.names)) / 2:
        raise InputError(
            f"the teacher's classes have no names, and by number it agrees with {100 * agreement:.0f}% of the labels: "
            "set id2label in its config.json"
        )

    one_hot = np.eye(len(data.names), dtype=np.float32)[data.labels]
    targets[labelled] = 0.5 * one_hot + 0.5 * targets[labelled]
    labels = np.concatenate([data.labels, targets[len(texts) :].argmax(1)])
    return replace(data, texts=texts + added, labels=labels, targets=targets, labelled=len(texts))


def variants_of(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` variants of each text: a random span of at least 60% of its words, with words dropped.

    A variant need not have the label of its text, so only a teacher can label it.
    """
    generator = random.Random(0)
    words = [text.split() for text in texts]
    return [" ".join(_random_span(each, generator)) for _ in range(count) for each in words]


def _random_span(words: Sequence[str], generator: random.Random) -> list[str]:
    """Consecutive words, each dropped with a probability of up to 0.3."""
    length = max(1, round(len(words) * generator.uniform(0.6, 1)))
    start = generator.randint(0, max(0, len(words) - length))
    drop_probability = 0.3 * generator.random()
    return [word for word in words[start : start + length] if generator.random() >= drop_probability]
