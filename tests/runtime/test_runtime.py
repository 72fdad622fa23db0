import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from ade.classifier import Classifier
from ade.errors import InputError
from ade.runtime.runtime import Runtime
from ade.settings import STRONG, Architecture
from ade.training.loop import fit_model
from tests.conftest import PATIENT

TEXTS = ["the team and the coach", "bank share price", "", "rocket", "of the comet in orbit " * 40]


@pytest.fixture(scope="module", params=["tokens", "anchors", "gated"])
def folder(request, codebook, topics, tmp_path_factory):
    settings = STRONG.__class__(steps=60, batch_size=16, learning_rate=5e-3, lexicon=False, device="cpu")
    out = tmp_path_factory.mktemp("model") / request.param
    fit_model(codebook, topics, settings=settings, architecture=Architecture(attend=request.param), out=out)
    return out


def test_it_says_what_the_model_says(folder, topics):
    """Against the torch model called as in training, not through the tables."""
    runtime, classifier = Runtime.load(folder, threads=2), Classifier.load(folder, "cpu")
    texts = [*TEXTS, *topics.texts]
    assert runtime.names == classifier.names
    expected = []
    for text in texts:
        ids = classifier.tokenizer.encode(text).ids or [0]
        with torch.inference_mode():
            expected.append(classifier.model(torch.tensor([ids])).logits[0].softmax(0).numpy())
    assert np.abs(runtime.predict_proba(texts) - np.stack(expected)).max() < 1e-3
    assert runtime.predict(texts) == [classifier.names[p.argmax()] for p in expected]
    assert [label for label, _ in runtime.stream(iter(texts))] == runtime.predict(texts)
    assert runtime.predict(TEXTS[1]) == runtime.predict(TEXTS)[1]
    assert runtime.predict([]) == []


def test_scores_in_steps_are_those_at_once(folder):
    """Windows of long texts are computed some at a time; every step but the last gives nothing."""
    runtime = Runtime.load(folder)
    texts = [*TEXTS, "the rocket and the bank " * 500, "team " * 3000]
    for tokens in (1, 600, 10**6):
        *before, scores = runtime.score_steps(texts, tokens)
        assert len(before) >= (9 if tokens == 1 else 1)
        assert all(each is None for each in before)
        assert np.allclose(scores, runtime.predict_scores(texts), rtol=1e-4, atol=1e-5)


def test_a_changed_weight_is_seen(folder):
    classifier = Classifier.load(folder, "cpu")
    before = classifier.predict_proba("bank share price")
    with torch.no_grad():
        classifier.model.classifier.bias += torch.tensor([5.0, 0.0, 0.0])
    after = classifier.predict_proba("bank share price")
    assert after[0] > before[0]
    assert np.allclose(after[1] / after[2], before[1] / before[2], rtol=1e-3)


def test_neither_torch_nor_transformers_is_loaded(folder):
    program = (
        "import sys; from ade.runtime.runtime import Runtime; "
        f"print(Runtime.load({str(folder)!r}).predict('rocket in orbit')); "
        "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"


def test_broken_folders_are_refused_in_one_line(folder, tmp_path):
    with pytest.raises(InputError, match="not a model folder"):
        Runtime.load(tmp_path)
    for spoil, message in (
        (lambda f: (f / "config.json").write_text("{"), "not a readable"),
        (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "not an ADE model"),
        (lambda f: (f / "model.safetensors").write_bytes(b"nonsense"), "not a readable"),
        (lambda f: (f / "model.safetensors").unlink(), "not a readable"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer.json"),
        (lambda f: _without(f, "pooler.weight"), "not a readable"),
        (lambda f: _shortened(f), "not a readable"),
    ):
        broken = tmp_path / "broken"
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(folder, broken)
        spoil(broken)
        with pytest.raises(InputError, match=message) as caught:
            Runtime.load(broken)
        assert "\n" not in str(caught.value)


def _without(folder, name: str) -> None:
    state = load_file(folder / "model.safetensors")
    state.pop(name)
    save_file(state, folder / "model.safetensors")


def _shortened(folder) -> None:
    state = load_file(folder / "model.safetensors")
    state["ade.norm.weight"] = state["ade.norm.weight"][:-1].copy()
    save_file(state, folder / "model.safetensors")


def test_the_command_line_predicts_without_torch(folder, tmp_path):
    (tmp_path / "in.txt").write_text("the rocket and the comet\nprofit of the bank\n")
    program = (
        "import sys; sys.argv = ['ade', 'predict', *sys.argv[1:], '--json']\n"
        "from ade.cli import main as cli\n"
        "try:\n    cli.main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "in.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["predictions"]
    expected = Classifier.load(folder, "cpu").predict(["the rocket and the comet", "profit of the bank"])
    assert [entry["label"] for entry in found] == expected


def test_half_the_bits_on_disk_will_do(folder, tmp_path):
    classifier = Classifier.load(folder, "cpu")
    expected = classifier.predict_proba(TEXTS)
    classifier.model.to(torch.bfloat16).save_pretrained(tmp_path / "narrow")
    shutil.copy(folder / "tokenizer.json", tmp_path / "narrow")
    assert np.abs(Runtime.load(tmp_path / "narrow").predict_proba(TEXTS) - expected).max() < 0.05


def test_labels_nobody_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "nameless")
    config = json.loads((folder / "config.json").read_text())
    config.pop("id2label")
    (tmp_path / "nameless" / "config.json").write_text(json.dumps(config))
    assert Runtime.load(tmp_path / "nameless").names == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_a_tokenizer_that_knows_more_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "more")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([f"new{i}" for i in range(3)])
    tokenizer.save(str(tmp_path / "more" / "tokenizer.json"))
    for kind in (Runtime, Classifier):
        with pytest.raises(InputError, match="knows 35 tokens, the model 32"):
            kind.load(tmp_path / "more")


def test_it_survives_a_fork_and_a_copy(folder):
    texts = TEXTS * 10
    runtime, classifier = Runtime.load(folder, threads=2), Classifier.load(folder, "cpu")
    expected = runtime.predict(texts)
    assert classifier.predict(texts) == expected
    for copied in (copy.deepcopy(runtime), pickle.loads(pickle.dumps(classifier))):
        assert copied.predict(texts) == expected
    program = (
        "import os, sys; from ade.runtime.runtime import Runtime\n"
        "texts = ['the team', 'bank share'] * 20\n"
        f"runtime = Runtime.load({str(folder)!r}, threads=2); before = runtime.predict(texts)\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(0 if runtime.predict(texts) == before else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    for parallel in ("true", "false"):
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": parallel}
        done = subprocess.run([sys.executable, "-c", program], timeout=PATIENT, check=False, env=environment)
        assert done.returncode == 0


def test_many_threads_may_ask(folder):
    texts = TEXTS * 8
    runtime = Runtime.load(folder, threads=2)
    expected = runtime.predict_proba(texts)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: runtime.predict_proba(texts), range(12)):
            assert np.allclose(found, expected, atol=1e-6)
