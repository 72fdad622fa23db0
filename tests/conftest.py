"""Small real things to test on: a word tokenizer, ragged codebooks, a teacher folder, data a model can learn."""

import csv
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from ade.cli import main as cli
from ade.codebook import Codebook
from ade.configuration import CODEBOOK, ENCODER, Config
from ade.data.dataset import Dataset
from ade.folder import Saved, new_model
from ade.teachers import Teacher
from ade.trained_model import Encoder

if TYPE_CHECKING:
    from benchmarks.records import Places

torch.set_num_threads(1)  # several workers share the cores
os.environ["OMP_NUM_THREADS"] = "1"  # and so do the processes they start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # which need not compile the package, each of them again
os.environ["ADE_PROGRESS"] = "0"  # no lines of progress among the errors that tests read
settings.register_profile("ade", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("ade")


# Files of tests that take longest. They start first: where a worker takes a whole file, none is left alone with one.
LONGEST = (
    "test_ray.py", "test_processes.py", "test_onnx.py", "test_install.py", "test_examples.py", "test_benchmarks.py",
    "test_benchmarks_compress.py", "test_scikit_learn.py", "test_checkpoint.py", "test_pretrained.py", "test_stop.py",
    "test_quantizer.py", "test_page.py", "test_readme.py", "test_docs.py", "test_hugging_face.py", "test_main.py",
    "test_sentence_transformers.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    torch.manual_seed(0)  # fresh weights are drawn alike whichever tests ran before, in any order, in any worker


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    torch.manual_seed(0)


WORDS = {
    "sport": ["goal", "match", "team", "league", "coach", "score"],
    "money": ["bank", "market", "profit", "share", "trade", "price"],
    "space": ["orbit", "rocket", "comet", "planet", "probe", "lunar"],
}
PATIENT = 600  # seconds after which a test gives up on what never comes: many times what a slow machine needs
FILLER = ["the", "a", "of", "and", "in", "it", "was", "is", "on", "for", "that", "with"]


def until(happened: Callable[[], bool]) -> None:
    """Wait for an event, on a machine of any speed."""
    give_up = time.monotonic() + PATIENT
    while not happened():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.01)


def word_tokenizer(words: list[str]) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def ragged_codebook(counts: list[int], anchors: int = 12, dim: int = 8, seed: int = 0) -> Saved:
    """A codebook with exactly these k_i; each token's anchors are distinct."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.nn.functional.normalize(torch.randn(anchors, dim, generator=generator), dim=1)
    indices = torch.cat([torch.randperm(anchors, generator=generator)[:k] for k in counts])
    weights = torch.randn(len(indices), generator=generator)
    tokenizer = word_tokenizer([f"w{i}" for i in range(max(0, len(counts) - 2))])
    book = Codebook(table.numpy(), indices.numpy(), weights.numpy(), np.array(counts))
    return Saved(Config(kind=CODEBOOK), tokenizer, book, {})


def untrained(start: Saved, labels: Sequence[str] = ("value",), **more: Any) -> Saved:
    """An untrained model on a codebook, its rows of unit variance."""
    table = start.table.normalised() if isinstance(start.table, Codebook) else start.table
    return new_model(replace(start, table=table), Config(labels=tuple(labels), **more))


def lively(saved: Saved, seed: int = 1, scale: float = 0.2) -> Saved:
    """A model none of whose layers is at its starting value."""
    generator = np.random.default_rng(seed)
    layers = {
        name: (array + scale * generator.standard_normal(array.shape)).astype(np.float32)
        for name, array in saved.layers.items()
    }
    return replace(saved, layers=layers)


def sentence_encoder(layers: int = 1, attend: str = "tokens", outputs: int = 24) -> Encoder:
    """An encoder none of whose layers is at its starting value."""
    codebook = ragged_codebook([1, 2, 3, 4, 5, 2, 3] * 2, dim=16)
    more: dict[str, Any] = {"kind": ENCODER, "attend": attend, "layers": layers, "heads": 4, "max_tokens": 32}
    return Encoder(lively(untrained(codebook, (), output_size=outputs, position_scale=0.3, **more)))


def topic_texts(rows: int, seed: int) -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(rows):
        label = str(generator.choice(list(WORDS)))
        words = [*generator.choice(WORDS[label], 2), *generator.choice(FILLER, int(generator.integers(2, 9)))]
        texts.append(" ".join(generator.permutation(words)))
        labels.append(label)
    return texts, labels


@pytest.fixture(scope="session")
def topics() -> Dataset:
    texts, labels = topic_texts(600, 0)
    names = tuple(sorted(WORDS))
    return Dataset(texts, np.array([names.index(label) for label in labels]), names)


@pytest.fixture(scope="session")
def topic_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("topics")
    for split, rows, seed in (("train", 400, 0), ("test", 100, 1)):
        with open(folder / f"{split}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows(zip(*topic_texts(rows, seed), strict=True))
    return folder


@pytest.fixture(scope="session")
def teacher() -> Teacher:
    words = [word for group in WORDS.values() for word in group] + FILLER
    tokenizer = word_tokenizer(words)
    table = torch.randn(tokenizer.get_vocab_size(), 16, generator=torch.Generator().manual_seed(1))
    return Teacher("tiny", table, tokenizer)


@pytest.fixture(scope="session")
def teacher_folder(teacher, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    save_file({"weight": teacher.table}, folder / "embeddings.safetensors")
    teacher.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def codebook(teacher) -> Saved:
    from ade.distillation import distill
    from ade.settings import DistillationSettings

    return distill(teacher, DistillationSettings(anchors=10, pairs=3))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory) -> Path:
    """A real BERT classifier, too small to know anything; its classes stand in another order than ours."""
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    words = word_tokenizer([*(word for group in WORDS.values() for word in group), *FILLER])
    labels = dict(enumerate(sorted(WORDS, reverse=True)))
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=words.get_vocab_size(), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, id2label=labels, label2id={name: i for i, name in labels.items()}, initializer_range=1.0,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    return folder


@pytest.fixture
def places(tmp_path) -> "Places":
    """Data and a teacher for the benchmarks."""
    from benchmarks.records import Places

    for name in ("ag_news", "dbpedia_14"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for split, rows, seed in (("train", 200, 0), ("test", 80, 1)):
            with open(tmp_path / "data" / name / f"{split}.csv", "w", newline="") as file:
                writer = csv.writer(file)
                for text, label in zip(*topic_texts(rows, seed), strict=True):
                    writer.writerow([sorted(WORDS).index(label) + 1, "", text])
    folder = tmp_path / "teachers" / "deberta-v3-xsmall"
    folder.mkdir(parents=True)
    words = [*(word for group in WORDS.values() for word in group), *FILLER, *(f"w{i}" for i in range(100))]
    tokenizer = word_tokenizer(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"weight": torch.randn(tokenizer.get_vocab_size(), 16)}, folder / "embeddings.safetensors")
    return Places(tmp_path / "data", tmp_path / "teachers", tmp_path / "work", "cpu")


@pytest.fixture
def ade(monkeypatch, capsys):
    """Run the command line as a shell would; gives exit status, stdout and stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ade", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run
