"""The rooms of the package and who may import whom: what the README's map says is what the imports do."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ade"

# A module imports, when it is loaded, only from its own line or from lines above it.
LAYERS = [
    {"settings", "errors", "progress", "devices", "files", "arrays", "positions"},
    {
        "data",
        "config_values",
        "packing.bits",
        "packing.format",
        "packing.pairs",
        "packing.coded",
        "lexicon",
        "explanation",
    },
    {
        "teachers",
        "codebook",
        "pursuit",
        "distillation",
        "embedding",
        "coded_embedding",
        "compression.table",
        "compression.trainable",
        "compression.coded_table",
        "lexicon_layer",
        "packing",
    },
    {
        "configuration",
        "tokenizer",
        "pretrained",
        "model",
        "model_card",
        "predictor",
        "classifier",
        "evaluation",
        "encoder",
        "sentence_model",
        "sentence_encoder",
    },
    {"training", "runtime", "compression", "search"},
    {"inspector", "integrations"},
    {"service"},
    {"cli"},
]


@cache
def modules() -> list[str]:
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    return [".".join(path.parts) for path in paths if path.name not in ("__init__", "__main__")]


def layer_of(module: str) -> int:
    for name in (module, module.partition(".")[0]):
        for i, layer in enumerate(LAYERS):
            if name in layer:
                return i
    raise AssertionError(f"{module} has no place in the layers")


@cache
def imported_on_loading(module: str) -> set[str]:
    """Modules of ours that a module imports outside of functions and of `if TYPE_CHECKING`."""
    tree = ast.parse((PACKAGE / (module.replace(".", "/") + ".py")).read_text("utf8"))
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ade."):
            name = node.module.removeprefix("ade.")
            inside = [f"{name}.{alias.name}" for alias in node.names]
            found |= {each for each in inside if each in modules()} or {name}
        elif isinstance(node, ast.ImportFrom) and node.module == "ade":
            found |= {alias.name for alias in node.names if alias.name in modules()}
    return found


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_from_its_layer_or_below(module):
    for other in imported_on_loading(module):
        assert layer_of(other) <= layer_of(module), f"{module} imports {other}"


def test_no_room_is_named_like_a_public_function():
    import ade

    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    assert not rooms & {*ade.__all__, "distill", "train", "evaluate", "export", "compress", "load"}


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        ("ade", ("torch", "pyarrow", "transformers", "numpy")),
        ("ade.cli.main", ("torch", "pyarrow", "transformers")),
        ("ade.runtime.runtime", ("torch", "pyarrow", "transformers")),
        ("ade.training.loop", ("ade.runtime", "ade.inspector", "ade.cli")),
    ],
)
def test_what_importing_leaves_out(imported, absent):
    code = f"import sys, {imported}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_listed_and_can_be_completed():
    import ade

    assert {*ade.__all__, "AdeClassifier", "AdeEncoder", "AdeRegressor", "AdeModule"} <= set(dir(ade))
