"""The notebooks run from top to bottom, and are kept without what they print; the pages with code run, too."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import PATIENT

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_kept_clean(path):
    for cell in nbformat.read(path, 4).cells:
        assert cell.source.strip() == cell.source
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    notebook = nbformat.read(path, 4)
    limits = {"timeout": PATIENT, "startup_timeout": PATIENT}
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}}, **limits).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@pytest.mark.parametrize("page", ["scikit_learn", "sentence_transformers"])
def test_the_code_of_a_page_runs(page, tmp_path):
    text = (ROOT / "docs" / f"{page}.md").read_text("utf8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("import ade") == 1
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    known = "UserWarning: 'pin_memory'"  # torch's word on machines without a GPU
    assert "Warning" not in done.stderr.replace(known, "")
