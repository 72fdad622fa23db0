"""The Dockerfile: built where a builder is present; everywhere its lines are checked against the wheel and the verb."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from ade.service.middleware import HEALTH
from tests.conftest import PATIENT
from tests.test_install import SOURCES

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


def test_the_wheel_is_made_of_the_files_that_the_install_test_takes():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf8").splitlines() if line.startswith("!")}
    copied = [line.split()[:-1] for line in lines_of("COPY") if not line.startswith("--from=build")]
    assert {name for names in copied for name in names} == {*SOURCES, "constraints.txt"} == kept
    assert "pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ." in lines_of("RUN")


def test_what_is_installed_is_the_service_without_torch():
    install = lines_of("RUN")[1]
    extra = re.search(r'"\$\(echo /wheels/\*\.whl\)\[(\w+)\]"', install)[1]
    needed = [Requirement(each) for each in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra])]
    installed = {each.name for each in needed if each.marker is None or each.marker.evaluate()}
    assert {"uvicorn", "fastapi", "numpy"} <= installed
    assert not installed & {"torch", "transformers", "accelerate"}
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
    assert path == HEALTH
    compile(check[-1], "check", "exec")


def test_it_does_not_run_as_root():
    (user,) = lines_of("USER")
    assert int(user) > 0
    assert f"--uid {user} " in " ".join(lines_of("RUN")) + " "
    names = [name for name, _ in LINES]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert lines_of("STOPSIGNAL") == ["SIGTERM"]
