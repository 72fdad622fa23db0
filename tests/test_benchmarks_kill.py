"""A few of the kills and full disks of `python -m benchmarks kill`, at operations that are the same in every run."""

import pytest

from benchmarks import kill


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    return kill.write_data(tmp_path_factory.mktemp("data"))


# Training is killed in tests/training/test_checkpoints.py, and by the script.
def test_killed_and_without_room_a_command_still_ends_with_the_same_bytes(commands, tmp_path):
    command = commands["packed distillation"]
    whole = kill.undisturbed(command, tmp_path / "whole")
    assert whole.files
    assert whole.operations > 5

    def disturb() -> str:
        """Killed in the middle, then without room for the largest file, and killed again."""
        here, largest = tmp_path / "trial", max(map(len, whole.files.values()))
        return (
            kill.kill_at(command, here, whole.operations // 2)
            or kill.fill_disk(command, here, largest // 2)
            or kill.kill_at(command, here, 3)
        )

    assert kill.trial(command, whole, tmp_path / "trial", disturb) == ""


def test_other_bytes_are_noticed(commands, tmp_path):
    command = commands["distillation"]
    whole = kill.undisturbed(command, tmp_path / "whole")
    assert "different: [" in kill.trial((*command, "--set", "seed=1"), whole, tmp_path / "trial", lambda: "")
