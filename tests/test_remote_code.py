"""Code of a model on the hub is never run: every call that loads a model or a tokenizer says so."""

import ast
import json
from pathlib import Path

import pytest

from ade.errors import InputError
from ade.training.soft_targets import LabelTeacher

ROOT = Path(__file__).parent.parent
OURS = {"nn.Embedding"}  # a table of torch


def loading_calls() -> list[tuple[str, ast.Call]]:
    """Calls of `from_pretrained`, and of `from_config` and `pipeline`, which take the same argument."""
    found = []
    for folder in ("ade", "benchmarks", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf8"))):
                if not isinstance(node, ast.Call):
                    continue
                name = ast.unparse(node.func)
                owner, _, method = name.rpartition(".")
                is_auto = method == "from_config" and owner.rpartition(".")[2].startswith("Auto")
                if is_auto or method in ("from_pretrained", "pipeline"):
                    found.append((f"{path.relative_to(ROOT)}:{node.lineno} {name}", node))
    return found


CALLS = [(where, call) for where, call in loading_calls() if ast.unparse(call.func).rpartition(".")[0] not in OURS]


@pytest.mark.parametrize(("where", "call"), CALLS, ids=[where for where, _ in CALLS])
def test_remote_code_is_refused_by_name(where, call):
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert given.get("trust_remote_code") == "False", where


def test_the_calls_are_found():
    assert {where.split(":")[0] for where, _ in CALLS} >= {"ade/teachers.py", "ade/training/soft_targets.py"}


def test_a_classifier_with_code_of_its_own_is_refused_without_a_question(tmp_path):
    """Transformers would ask on the terminal whether to run the code; the file would leave a trace if it ran."""
    config = {"model_type": "odd", "auto_map": {"AutoConfig": "odd.OddConfig"}, "architectures": ["OddModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "odd.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass OddConfig: pass\n")
    with pytest.raises(InputError, match="not a readable sequence classifier"):
        LabelTeacher.load(tmp_path, ["a", "b"], "cpu")
    assert not (tmp_path / "ran").exists()
