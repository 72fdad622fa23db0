"""A fine-tuned encoder as a teacher of labels: its probabilities for the training texts and for texts without labels.

Any Hugging Face sequence classifier will do (an ADE model too), with its own tokenizer. What it says about a list of
texts is computed once and kept, so a second run with other settings costs nothing.
"""

import contextlib
import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ade.data.batches import encode, sorted_batches
from ade.data.dataset import Dataset
from ade.devices import resolve_device
from ade.errors import InputError, first_line
from ade.files import new_file
from ade.progress import Report, quiet, silent
from ade.settings import TeachingSettings

TEXTS = 320_000  # how many texts the teacher is asked about where `variants` is left to us
MOST_VARIANTS = 20
MAX_TOKENS = 256


class LabelTeacher:
    """A sequence classifier that is asked about texts, its classes in the order of `names`."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, order: np.ndarray, cache: Path | None = None) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.order = order  # our class i is the teacher's class order[i]
        self.cache = cache
        self.named = True  # whether classes were matched by name

    @classmethod
    def load(cls, source: str | Path, names: Sequence[str], device: str = "auto") -> "LabelTeacher":
        """Read a model folder or hub name (safetensors only, no remote code) whose classes are `names`."""
        try:
            with quiet():
                model, about = AutoModelForSequenceClassification.from_pretrained(
                    source, use_safetensors=True, output_loading_info=True
                )
                tokenizer = AutoTokenizer.from_pretrained(source)
        except InputError:
            raise
        except Exception as error:  # whatever transformers and safetensors make of a foreign or broken folder
            raise InputError(f"{source}: not a readable sequence classifier ({first_line(error)})") from None
        if about["missing_keys"]:
            raise InputError(f"{source}: an encoder without a trained classifier on it; fine-tune it first")
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise InputError(f"{source}: its tokenizer has no tokenizer.json; save it with a fast tokenizer")
        order = _matched(model.config.id2label, names, source)
        plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        plain.no_padding()
        teacher = cls(model.to(resolve_device(device)), plain, order, cache_folder())
        teacher.named = not _nameless(model.config.id2label)
        return teacher

    def probabilities(self, texts: Sequence[str], report: Report = silent) -> np.ndarray:
        """What the teacher thinks of each text: (n, C); from the cache where it was asked before."""
        if self.cache is None:
            return self._ask(texts, report)
        path = self.cache / f"{self._digest(texts)}.safetensors"
        known = _kept(path, (len(texts), len(self.order)))
        if known is not None:
            return known
        found = self._ask(texts, report).astype(np.float16)
        with contextlib.suppress(OSError, InputError):  # a cache that cannot be written costs time, not the run
            self.cache.mkdir(parents=True, exist_ok=True)
            with new_file(path) as draft:
                save_file({"probabilities": found}, draft)
        return found.astype(np.float32)  # the same whether it was kept or not

    @torch.inference_mode()
    def _ask(self, texts: Sequence[str], report: Report) -> np.ndarray:
        device = next(self.model.parameters()).device
        longest = getattr(self.model.config, "max_position_embeddings", None) or MAX_TOKENS
        limit = min(MAX_TOKENS, longest) if longest > 0 else MAX_TOKENS
        padding = getattr(self.model.config, "pad_token_id", None)
        if padding is None and not hasattr(self.model, "ade"):
            raise InputError("the teacher has no pad_token_id, so it cannot be asked about many texts at once")
        encoded = encode(self.tokenizer, texts, limit).to(device)
        found = np.empty((len(encoded), len(self.order)), dtype=np.float32)  # (n, C)
        done = 0
        for rows in sorted_batches(encoded.lengths, 65536 if device.type == "cuda" else 8192):
            ids, mask = encoded.padded(rows, fill=padding or 0)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = self.model(input_ids=ids, attention_mask=mask.long()).logits
            found[rows] = logits.float().softmax(1).cpu().numpy()[:, self.order]
            done += len(rows)
            report("teacher", done, len(encoded), {})
        if not np.isfinite(found).all():
            raise InputError("the teacher's answers are not finite numbers: its weights are damaged, or it diverged")
        return found

    def _digest(self, texts: Sequence[str]) -> str:
        digest = hashlib.sha256(repr((MAX_TOKENS, self.order.tolist())).encode())
        digest.update(self.tokenizer.to_str().encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(name.encode() + tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for text in texts:
            encoded = text.encode("utf8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()[:32]


def _kept(path: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Answers from the cache; None where there are none, or what is there cannot be them."""
    try:
        found = load_file(path)["probabilities"].astype(np.float32)
    except (OSError, SafetensorError, LookupError, TypeError, ValueError):  # whatever a damaged file is taken for
        return None
    return found if found.shape == shape and np.isfinite(found).all() else None


def _matched(theirs: dict[int, str], names: Sequence[str], source: str | Path) -> np.ndarray:
    """Where each of our classes stands among the teacher's: by name, or by number where it has no names."""
    if len(theirs) != len(names):
        raise InputError(f"{source}: has {len(theirs)} classes, the data has {len(names)}")
    if len(set(names)) < len(names):
        raise InputError("the data has two classes of the same name, so they cannot be matched with the teacher's")
    if _nameless(theirs):
        return np.arange(len(names))
    place = {name: i for i, name in theirs.items()}
    missing = [name for name in names if name not in place]
    if missing:
        raise InputError(f"{source}: does not know the class '{missing[0]}'; it has {', '.join(list(place)[:5])}")
    return np.array([place[name] for name in names])


def _nameless(theirs: dict[int, str]) -> bool:
    return all(name == f"LABEL_{i}" for i, name in theirs.items())  # what transformers says where nobody said anything


def cache_folder() -> Path:
    """Where answers are kept: $ADE_CACHE, or `ade` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ADE_CACHE") or Path(home) / "ade")


def taught(
    data: Dataset,
    teacher: LabelTeacher,
    settings: TeachingSettings | None = None,
    unlabelled: Sequence[str] = (),
    report: Report = silent,
) -> Dataset:
    """The data with soft targets, and more of it: variants of its texts and unlabelled ones, named by the teacher.

    A row with a label is a blend of the label and the teacher's opinion. Hold the dev rows back before this.
    """
    settings = settings or TeachingSettings()
    texts = list(data.texts)
    count = settings.variants
    if count < 0:
        count = min(MOST_VARIANTS, round(TEXTS / max(1, len(texts) + len(unlabelled))))
    more = list(unlabelled)
    known = set(texts + more)
    more += [text for text in dict.fromkeys(variants(texts + more, count)) if text and text not in known]
    opinions = teacher.probabilities(texts + more, report)  # (n, C)
    agreement = float((opinions[: len(texts)].argmax(1) == data.labels).mean())
    if not teacher.named and agreement < (1 + 1 / len(data.names)) / 2:
        raise InputError(
            f"the teacher's classes have no names, and by number it agrees with {100 * agreement:.0f}% of the labels: "
            "set id2label in its config.json"
        )
    labels = np.eye(len(data.names), dtype=np.float32)[data.labels]
    opinions[: len(texts)] = (1 - settings.trust) * labels + settings.trust * opinions[: len(texts)]
    classes = np.concatenate([data.labels, opinions[len(texts) :].argmax(1)])
    return replace(data, texts=texts + more, labels=classes, targets=opinions, labelled=len(texts))


def variants(texts: Sequence[str], count: int, seed: int = 0) -> list[str]:
    """`count` texts made from each: a random stretch of it, at least three fifths, with words left out here and there.

    Such a text has no label for certain, but a teacher can say what it makes of it.
    """
    choose = random.Random(seed)
    words = [text.split() for text in texts]
    return [" ".join(_stretch(own, choose)) for _ in range(count) for own in words]


def _stretch(words: Sequence[str], choose: random.Random) -> list[str]:
    length = max(1, round(len(words) * choose.uniform(0.6, 1)))
    start = choose.randint(0, max(0, len(words) - length))
    dropped = 0.3 * choose.random()
    return [word for word in words[start : start + length] if choose.random() >= dropped]
