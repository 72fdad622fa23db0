"""The command line in a process of its own: pipes, Ctrl-C, completion, and how much it imports."""

import json
import os
import signal
import subprocess
import sys

from ade.training.checkpoints import CHECKPOINT, DONE
from tests.cli.conftest import SPEED
from tests.conftest import PATIENT


def _python(*words, **options):
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def _ade(*words, **options):
    return _python("-m", "ade", *words, **options)


# `ade`, held at its second checkpoint: it says so, and goes no further until it is stopped.
HELD = """
import signal, sys, time
from ade.cli import main as cli
from ade.training.checkpoints import RunFolder

signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal: a shell's background jobs ignore it
save, saved = RunFolder.save, []

def hold(self, *given):
    save(self, *given)
    saved.append(1)
    if len(saved) == 2:
        print("held", flush=True)
        while True:
            time.sleep(0.01)

RunFolder.save = hold
cli.main()
"""


def test_ctrl_c_leaves_a_run_that_can_go_on(ade, book, topic_folder, tmp_path):
    words = ("train", "--from", book, topic_folder, "--out", tmp_path / "m", *SPEED)
    with _python("-c", HELD, *words) as process:
        try:
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENT)
        finally:
            process.kill()
    assert process.returncode == 130
    assert errors == "ade: interrupted; use --resume to continue\n"
    assert os.listdir(tmp_path / "m") == [CHECKPOINT]
    status, out, errors = ade(*words, "--resume", "--json")
    assert (status, errors) == (0, "")
    assert json.loads(out)["test"]["accuracy"] > 0.9
    steps = [each["step"] for each in json.loads((tmp_path / "m" / DONE).read_text())["validations"]]
    assert steps == list(range(5, 101, 5))  # the first two before it was stopped, every other one after


def test_a_reader_that_stops_early_is_no_error(trained, tmp_path):
    (tmp_path / "many.txt").write_text("the coach\n" * 20_000)
    with _ade("predict", trained, tmp_path / "many.txt") as process:
        assert process.stdout.readline().startswith("sport")
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=PATIENT) == 0
    assert errors == ""


def test_bash_completes_verbs_and_options():
    for words, count, expected in (("ade tr", 1, "train"), ("ade train --teach", 2, "--teacher")):
        environment = {**os.environ, "_ADE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        code = "import sys; sys.argv = ['ade']; from ade.cli.main import main; main()"
        with _python("-c", code, env=environment) as process:
            out, errors = process.communicate(timeout=PATIENT)
        assert (out.split(), errors) == ([expected], "")


def test_ctrl_c_in_other_verbs_says_only_that(trained):
    """A verb that cannot be resumed does not suggest --resume."""
    code = (
        "import signal, sys\nfrom ade.cli import main as cli\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\ncli.main()"
    )
    with _python("-c", code, "predict", trained, "-", stdin=subprocess.PIPE) as process:
        process.stdin.write("the coach\n" * 5000)  # more than is predicted at a time, so that lines come back
        process.stdin.flush()
        assert process.stdout.readline().startswith("sport")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENT)
    assert (process.returncode, errors) == (130, "ade: interrupted\n")
