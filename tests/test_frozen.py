"""Small models of every kind give what they gave when they were frozen, however the code has changed since."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ade.data.tokens import tokenize
from ade.folder import Saved
from ade.model import model_of
from ade.torch_backends import TorchBackend
from ade.trained_model import unit
from tests.frozen.cases import CASES, COMPRESSED, TEXTS
from tests.frozen.models import ARRAYS, OTHERS, observe, observe_compressed, write, write_compressed

NUMBER = re.compile(r"[-+]?\d+\.\d+")
TOLERANCE = 2e-5  # of float32 arithmetic in another order, relative to the largest number of an array


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    with np.load(ARRAYS, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def others() -> dict[str, Any]:
    return json.loads(OTHERS.read_text("utf8"))


def assert_near(found: np.ndarray, frozen: np.ndarray) -> None:
    assert found.shape == frozen.shape
    assert np.abs(found - frozen).max(initial=0) <= TOLERANCE * max(1e-3, np.abs(frozen).max(initial=0))


def assert_alike(found: Any, frozen: Any) -> None:
    """The same but for the last digit of printed numbers, which may be rounded the other way on another processor."""
    if isinstance(frozen, dict | list):
        keys = [list(each) if isinstance(each, dict) else list(range(len(each))) for each in (found, frozen)]
        assert keys[0] == keys[1]
        for key in keys[1]:
            assert_alike(found[key], frozen[key])
    elif isinstance(frozen, float):
        assert found == pytest.approx(frozen, rel=TOLERANCE)
    elif isinstance(frozen, str):
        assert NUMBER.sub("#", found) == NUMBER.sub("#", frozen)
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (found, frozen)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-4, abs=1.5e-3)
    else:
        assert found == frozen


def own(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key.split("/")[1]: values for key, values in arrays.items() if key.startswith(f"{name}/")}


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_as_it_was_frozen(name, arrays, others, tmp_path):
    write(CASES[name], tmp_path / "model")
    found, rest = observe(CASES[name], tmp_path / "model")
    frozen = own(arrays, name)
    assert set(found) == set(frozen)
    for key, values in frozen.items():
        assert_near(found[key], values)
    assert_alike(json.loads(json.dumps(rest)), others[name])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.task != "tags"])
def test_the_forward_pass_gives_what_is_frozen(name, arrays, tmp_path):
    write(CASES[name], tmp_path / "model")
    saved = Saved.read(tmp_path / "model")
    scores = TorchBackend(model_of(saved)).scores(tokenize(saved.tokenizer, TEXTS, saved.config.max_tokens))
    vectors = CASES[name].task == "vectors"
    assert_near(unit(scores) if vectors else scores, arrays[f"{name}/{'vectors' if vectors else 'scores'}"])


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_compressed_model_is_as_it_was_frozen(name, arrays, others, tmp_path):
    write_compressed(COMPRESSED[name], tmp_path / "model")
    found, rest = observe_compressed(tmp_path / "model")
    for key, values in own(arrays, name).items():
        assert_near(found[key], values)
    assert_alike(rest, others[name])


def test_what_is_frozen_is_small_and_differs_from_model_to_model(arrays):
    assert sum(path.stat().st_size for path in Path(ARRAYS).parent.glob("frozen.*")) < 1_000_000
    scores = [values for key, values in arrays.items() if key.endswith("/scores") and values.shape == (len(TEXTS), 3)]
    assert len(scores) == 9
    for i, one in enumerate(scores):
        assert one.std() > 0.1
        assert all(np.abs(one - other).max() > 0.1 for other in scores[:i])
