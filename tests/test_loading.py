"""`ade.load`: every kind of folder as what it is, on every device that is there, and without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import ade
from ade.backends import PlainBackend, TableBackend, backend_for
from ade.configuration import CLASSIFIER, ENCODER, TAGGER
from ade.errors import InputError
from ade.torch_backends import TorchBackend
from ade.trained_model import model_from
from tests.models import random_model

KINDS = {CLASSIFIER: ade.Classifier, TAGGER: ade.Tagger, ENCODER: ade.Encoder}


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_loaded_as_what_it_is_and_as_nothing_else(kind, tmp_path):
    saved = random_model(kind=kind)
    saved.save(tmp_path / "model")
    loaded = ade.load(str(tmp_path / "model"), threads=2)
    assert type(loaded) is type(model_from(saved)) is KINDS[kind]
    assert isinstance(loaded.backend, TableBackend)
    for other, of_kind in KINDS.items():
        if other != kind:
            with pytest.raises(InputError, match=r"model: an? .* is needed here"):
                of_kind.load(tmp_path / "model")


def test_a_codebook_and_what_is_no_folder_are_refused(codebook, tmp_path):
    codebook.save(tmp_path / "book")
    with pytest.raises(InputError, match=r"a codebook without a model; .*--from"):
        ade.load(tmp_path / "book")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="not a model folder"):
        ade.load(tmp_path / "empty")
    with pytest.raises(InputError, match="neither a model folder nor a reachable hub name"):
        ade.load("nobody/has-such-a-model", local_files_only=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_every_backend_gives_the_same(attend, kind):
    saved = random_model(attend=attend, kind=kind, max_tokens=5)
    texts = ade.data.tokens.Ragged.of([[3, 4, 5, 6, 7, 8, 9], [0], [7, 8]])
    chosen = backend_for(saved)
    assert isinstance(chosen, TableBackend if attend == "tokens" else TorchBackend)
    for other in (PlainBackend(saved), TorchBackend(ade.model.model_of(saved))):
        if kind != TAGGER:
            for method in ("scores", "vectors"):
                expected, other_values = getattr(chosen, method)(texts), getattr(other, method)(texts)
                if (kind, method) == (ENCODER, "scores"):  # only the direction counts
                    expected, other_values = ade.trained_model.unit(expected), ade.trained_model.unit(other_values)
                np.testing.assert_allclose(other_values, expected, atol=2e-5)
        if kind != ENCODER:
            for own, expected in zip(other.token_scores(texts), chosen.token_scores(texts), strict=True):
                np.testing.assert_allclose(own, expected, atol=2e-5)


def test_devices(tmp_path):
    random_model().save(tmp_path / "model")
    scores = ade.load(tmp_path / "model").scores(["w1 w2"])
    assert ade.load(tmp_path / "model", device="auto").scores(["w1 w2"]) == pytest.approx(scores, abs=0.05)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU is available"):
            ade.load(tmp_path / "model", device="cuda")
    with pytest.raises(InputError, match="unknown device 'toaster'"):
        ade.load(tmp_path / "model", device="toaster")


@pytest.mark.parametrize("attend", ["tokens", "anchors"])
def test_prediction_needs_no_torch(attend, tmp_path):
    """Over anchors only where it is missing: with it they are faster."""
    saved = random_model(attend=attend, lexicon=True)
    saved.save(tmp_path / "model")
    program = (
        f"import sys, importlib.util; hide = {attend == 'anchors'}\n"
        "if hide: sys.modules['torch'] = None; find = importlib.util.find_spec; "
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        f"import ade; print(ade.load({str(tmp_path / 'model')!r}).scores(['w1 w2 w3'])[0].tolist())\n"
        "print([name for name in ('torch', 'transformers', 'pyarrow', 'pandas') if sys.modules.get(name)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    scores, imported = done.stdout.splitlines()
    assert eval(scores) == pytest.approx(model_from(saved).scores(["w1 w2 w3"])[0].tolist(), abs=1e-4)
    assert imported == "[]"
