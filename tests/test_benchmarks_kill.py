"""A few of the kills and full disks of `python -m benchmarks.kill`, at operations that are the same in every run."""

import pytest

from benchmarks import kill


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    return kill.write_data(tmp_path_factory.mktemp("stages"))


# Training is killed in tests/training/test_checkpoints.py, and by the script.
@pytest.mark.parametrize("name", ["packed distillation"])
def test_killed_and_without_room_a_command_still_ends_with_the_same_bytes(name, stages, tmp_path):
    stage = stages[name]
    whole = kill.whole_run(stage, tmp_path / "whole")
    assert whole.files
    assert whole.operations > 5

    def disturb() -> str:
        """Killed in the middle, then without room for the largest file, and killed again."""
        here, largest = tmp_path / "trial", max(map(len, whole.files.values()))
        return (
            kill.kill_at_operation(stage, here, whole.operations // 2)
            or kill.fill_disk(stage, here, largest // 2)
            or kill.kill_at_operation(stage, here, 3)
        )

    assert kill.trial(stage, whole, tmp_path / "trial", disturb) == ""


def test_other_bytes_are_noticed(stages, tmp_path):
    stage = stages["distillation"]
    whole = kill.whole_run(stage, tmp_path / "whole")
    other = kill.Stage((*stage.words, "--seed", "1"))
    assert "different: [" in kill.trial(other, whole, tmp_path / "trial", lambda: "")
