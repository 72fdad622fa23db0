"""A few of the kills and full disks of `python -m benchmarks kill`, at operations that are the same in every run."""

import pytest

from benchmarks import kill


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    return kill.write_data(tmp_path_factory.mktemp("data"))["distillation"]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    return kill.undisturbed(command, tmp_path_factory.mktemp("undisturbed") / "whole")


# Training is killed in tests/training/test_checkpoints.py, and by the script.
def test_killed_and_without_room_a_command_still_ends_with_the_same_bytes(command, whole, tmp_path):
    assert whole.files
    assert whole.operations > 5

    killed, full = {"operation": whole.operations // 2}, {"max_file": max(map(len, whole.files.values())) // 2}
    assert kill.trial(command, whole, tmp_path / "trial", [killed, full]) == ""


def test_other_bytes_are_noticed(command, whole, tmp_path):
    other = (*command, "--set", "seed=1")
    assert "different: [" in kill.trial(other, whole, tmp_path / "trial", [])
