"""The notebooks run from top to bottom, and are kept without what they print; the pages with code run, too."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import PATIENT

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.ipynb"))
# All of it runs, for fewer steps and on fewer rows than people who read what it prints would want.
FEWER = {
    r"anchors=\d+, rounds=\d+": "anchors=40, rounds=1",
    r'size="200kB", rounds=\d+': 'size="120kB", rounds=1',
    r"steps(\"?[=:] ?)\d\d+": r"steps\g<1>2",
    r"\b4000\b": "800",
    r"\b2000\b": "400",
    r"\b500\b": "200",
}


def shortened(code: str) -> str:
    for pattern, number in FEWER.items():
        code = re.sub(pattern, number, code)
    return code


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_kept_clean(path):
    for cell in nbformat.read(path, 4).cells:
        assert cell.source.strip() == cell.source
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    notebook = nbformat.read(path, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in code:
        cell.source = shortened(cell.source)
    limits = {"timeout": PATIENT, "startup_timeout": PATIENT}
    NotebookClient(notebook, kernel_name="python3", resources={"metadata": {"path": tmp_path}}, **limits).execute()
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


@pytest.mark.parametrize("page", ["scikit_learn", "sentence_transformers"])
@pytest.mark.filterwarnings("ignore:'pin_memory'")  # torch's word on machines without a GPU
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Without a warning, which would be an error."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    assert code.count("import ade") == 1
    monkeypatch.chdir(tmp_path)
    exec(compile(shortened(code), f"{page}.md", "exec"), {"__name__": page})
