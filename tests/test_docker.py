"""The Dockerfile: built where a builder is present; everywhere its lines are checked against the wheel and the verb."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def test_what_is_installed_is_the_wheel_with_the_service_and_no_torch():
    (extra,) = re.findall(r"\*\.whl\)\[(\w+)\]", " ".join(lines_of("RUN")))
    needed = (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra])
    installed = {Requirement(each).name for each in needed}
    assert {"uvicorn", "fastapi", "numpy"} <= installed
    assert not installed & {"torch", "transformers", "accelerate"}
    constraints = (ROOT / "constraints.txt").read_text("utf8").lower().replace("_", "-").splitlines()
    assert installed <= {line.split("==")[0] for line in constraints}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf8").splitlines() if line.startswith("!")}
    copied = [line.split()[:-1] for line in lines_of("COPY") if not line.startswith("--from=build")]
    assert {name for names in copied for name in names} == {*SOURCES, "constraints.txt"} == kept


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
    assert lines_of("STOPSIGNAL") == ["SIGTERM"]
