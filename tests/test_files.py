"""Output folders: all of a result or nothing, one process at a time, whatever happened before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ade.errors import InputError
from ade.files import model_folder, new_file, new_folder

MARKERS = {"marker.json"}


def write(folder: Path, text: str, overwrite: bool = False) -> None:
    with new_folder(folder, MARKERS, overwrite) as draft:
        (draft / "marker.json").write_text(text)


def test_a_folder_is_new_or_ours(tmp_path):
    write(tmp_path / "a" / "b", "first")
    with pytest.raises(InputError, match=r"earlier result.*--overwrite"):
        write(tmp_path / "a" / "b", "second")
    write(tmp_path / "a" / "b", "second", overwrite=True)
    assert (tmp_path / "a" / "b" / "marker.json").read_text() == "second"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for other, message in (("mine", "something else"), ("file", "is a file"), ("file/book", "cannot be made")):
        with pytest.raises(InputError, match=message):
            write(tmp_path / other, "third", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "file", "mine"]
    assert os.listdir(tmp_path / "a") == ["b"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "book").symlink_to(tmp_path / "disk" / "book")
    for text in ("first", "second"):
        write(tmp_path / "book", text, overwrite=True)
    assert (tmp_path / "book").is_symlink()
    assert (tmp_path / "disk" / "book" / "marker.json").read_text() == "second"


def test_a_failure_leaves_what_was_there(tmp_path):
    for folder in ("new/folder", "book"):
        with pytest.raises(ZeroDivisionError), new_folder(tmp_path / folder, MARKERS):
            raise ZeroDivisionError
    assert os.listdir(tmp_path) == []
    write(tmp_path / "book", "first")
    with pytest.raises(TypeError):
        write(tmp_path / "book", 3, overwrite=True)  # no text: fails when its folder has been begun
    assert (tmp_path / "book" / "marker.json").read_text() == "first"
    assert os.listdir(tmp_path) == ["book"]


@pytest.mark.parametrize("moment", ["writing", "between the moves"])
def test_a_kill_leaves_nothing_in_the_way(moment, tmp_path):
    """The earlier result is there, or comes back; the next one finds the place clean."""
    write(tmp_path / "book", "first")
    code = f"""
import os, sys
from pathlib import Path
from ade import files
def die(*_):
    os._exit(9)
with files.new_folder(Path({str(tmp_path / "book")!r}), {{"marker.json"}}, True) as draft:
    (draft / "marker.json").write_text("half")
    if {moment == "writing"}:
        die()
    replace = os.replace
    os.replace = lambda *paths: (replace(*paths), die())
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    with pytest.raises(InputError, match="earlier result"):
        write(tmp_path / "book", "second")
    assert (tmp_path / "book" / "marker.json").read_text() == "first"
    write(tmp_path / "book", "second", overwrite=True)
    assert os.listdir(tmp_path) == ["book"]


def test_one_process_at_a_time(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from ade.files import new_folder\n"
        "with new_folder(Path(sys.argv[1]), {'marker.json'}):\n    print('held', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, tmp_path / "book"], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="book: another run is writing there"):
            write(tmp_path / "book", "mine")
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    write(tmp_path / "book", "mine")
    assert os.listdir(tmp_path) == ["book"]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    (tmp_path / "page").write_text("first")
    with pytest.raises(UnicodeEncodeError), new_file(tmp_path / "page") as draft:
        draft.write_text("half of it \ud800", "utf8")
    assert (tmp_path / "page").read_text() == "first"
    with new_file(tmp_path / "page") as draft:
        draft.write_text("second")
    assert (tmp_path / "page").read_text() == "second"
    assert os.listdir(tmp_path) == ["page"]


def test_a_name_is_looked_up_on_the_hub_and_a_path_is_not(tmp_path, monkeypatch):
    asked = []

    def download(name: str, **given: object) -> str:
        asked.append((name, given))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    wanted = ["*.json", "*.packed.xz", "model.safetensors"]
    assert model_folder("owner/name", revision="v1") == tmp_path
    assert model_folder("owner/name", "sub") == tmp_path / "sub"
    assert asked[0] == ("owner/name", {"allow_patterns": wanted, "revision": "v1"})
    assert asked[1][1] == {"allow_patterns": [f"sub/{name}" for name in wanted]}
    for path in (str(tmp_path), str(tmp_path / "nowhere"), "no-owner", "./owner/name"):
        assert model_folder(path) == Path(path)
    assert model_folder(str(tmp_path), "sub") == tmp_path / "sub"
    assert len(asked) == 2
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)
    with pytest.raises(InputError, match="owner/name: neither a model folder nor a reachable hub name"):
        model_folder("owner/name")
