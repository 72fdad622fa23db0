"""The Dockerfile: built where a builder is present; everywhere its lines are checked against the wheel and the verb."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ade.service.middleware import HEALTH
from tests.conftest import PATIENT

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
LINES = [line.split(" ", 1) for line in (ROOT / "Dockerfile").read_text("utf8").splitlines() if line and line[0] != "#"]


def lines_of(instruction: str) -> list[str]:
    return [rest for name, rest in LINES if name == instruction]


def has_builder() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=PATIENT).returncode == 0


@pytest.mark.skipif(not has_builder(), reason="no docker daemon")
def test_it_builds_and_has_no_torch():
    build = ["docker", "build", "--quiet", "--tag", "ade-test", str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=PATIENT)
    code = "import importlib.util as u; import ade; print(u.find_spec('torch'))"
    run = ["docker", "run", "--rm", "--entrypoint", "python", "ade-test", "-c", code]
    assert subprocess.run(run, check=True, capture_output=True, text=True, timeout=PATIENT).stdout == "None\n"


def test_only_these_instructions_are_used():
    """A line of another kind needs a check of its own, below."""
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in LINES} == known


def test_python_is_one_the_project_supports():
    for image in lines_of("FROM"):
        release = re.fullmatch(r"python:(\d+\.\d+)-slim(?: AS build)?", image)[1]
        assert SpecifierSet(PROJECT["requires-python"]).contains(release)
        assert f"Programming Language :: Python :: {release}" in PROJECT["classifiers"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel made as the Dockerfile makes it: from the files it copies, and no others."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf8").splitlines() if line.startswith("!")}
    for line in lines_of("COPY"):
        *names, _ = line.split()
        for name in (name for name in names if not line.startswith("--from=build")):
            assert name in kept, f"{name} is copied, but .dockerignore leaves it out"
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source)
    assert "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ." in lines_of("RUN")
    recent = int(version("setuptools").partition(".")[0]) >= 77
    isolation = ["--no-build-isolation"] if recent else []
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *isolation, "--wheel-dir", out, source]
    subprocess.run(build, check=True, timeout=PATIENT)
    (made,) = out.glob("*.whl")
    return made


def test_what_is_installed_is_the_wheel_without_torch(wheel):
    install = lines_of("RUN")[1]
    extras = re.search(r'"\$\(echo /wheels/\*\.whl\)\[(\w+)\]"', install)[1]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(archive.read(metadata).decode())
    assert extras in about.get_all("Provides-Extra")
    needed = [Requirement(each) for each in about.get_all("Requires-Dist")]
    installed = {each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": extras})}
    assert {"uvicorn", "fastapi", "numpy"} <= installed
    assert not installed & {"torch", "transformers", "accelerate"}
    assert {"ade/service/app.py", "ade/inspector/web/index.html"} <= set(names)
    lines = (ROOT / "constraints.txt").read_text("utf8").splitlines()
    assert {canonicalize_name(each) for each in installed} <= {canonicalize_name(each.split("==")[0]) for each in lines}
    assert "/tmp/constraints.txt" in install


def test_what_is_started_is_the_verb(ade):
    words = [*json.loads(lines_of("ENTRYPOINT")[0]), *json.loads(lines_of("CMD")[0])]
    assert words[:2] == ["ade", "serve"]
    status, out, _ = ade("serve", "--help")
    assert status == 0
    assert all(flag in out for flag in words if flag.startswith("--"))
    port = words[words.index("--port") + 1]
    assert lines_of("EXPOSE") == [port]
    check = json.loads(lines_of("HEALTHCHECK")[0].removeprefix("CMD "))
    path = re.search(rf"http://127\.0\.0\.1:{port}(/[\w/]+)'", check[-1])[1]
    assert path in HEALTH
    compile(check[-1], "check", "exec")


def test_it_does_not_run_as_root():
    (user,) = lines_of("USER")
    assert int(user) > 0
    assert f"--uid {user} " in " ".join(lines_of("RUN")) + " "
    names = [name for name, _ in LINES]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert lines_of("STOPSIGNAL") == ["SIGTERM"]
