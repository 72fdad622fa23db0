"""`ade serve` as a process: what it says, what it loads, how it ends."""

import shutil
import subprocess
import sys

from ade.service.server import bind_socket


def test_a_classifier_is_served_without_torch(folder):
    program = f"""
import sys
from starlette.testclient import TestClient
from ade.service.app import create_app
from ade.service.model import ServedModel
client = TestClient(create_app(ServedModel.load({str(folder)!r})))
assert client.post("/predict", json={{"texts": "rocket"}}).status_code == 200
assert client.post("/inspect", json={{"text": "rocket"}}).status_code == 200
assert client.get("/about").status_code == 200
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_verb_says_what_is_wrong_in_a_line(ade, folder, tmp_path):
    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        status, _, errors = ade("serve", folder, "--port", port)
        assert (status, errors.count("\n")) == (2, 1)
        assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in errors
    (tmp_path / "empty.txt").write_text("# no key\n")
    shutil.copytree(folder, tmp_path / "damaged")
    weights = tmp_path / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    for words, says in (
        ((tmp_path, "--port", "0"), "not a model folder"),
        ((tmp_path / "damaged", "--port", "0"), f"{tmp_path / 'damaged'}: not a readable ADE model"),
        ((folder, "--host", "nowhere.invalid"), "cannot listen at nowhere.invalid"),
        ((folder, "--port", "70000"), "65535"),
        ((folder, "--set", "batch_tokens=0"), "batch_tokens must be at least 1, not 0"),
        ((folder, "--set", "grace=-1"), "grace must be at least 0, not -1"),
        ((folder, "--port", "0", "--api-key-file", tmp_path / "none.txt"), "none.txt: No such file or directory"),
        ((folder, "--port", "0", "--api-key-file", tmp_path / "empty.txt"), "empty.txt: give at least one key"),
    ):
        status, out, errors = ade("serve", *words)
        assert (status, out, errors.count("\n")) == (2, "", 1), errors
        assert says in errors
