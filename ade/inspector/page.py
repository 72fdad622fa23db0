"""The inspector's page as text: live, for the service, or with its readings inside, for a file to send around."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = (
    "money she deposited at the bank to pay her debts",
    "sloping land on the bank of the river beside the water",
)
EMPTY = '<script type="application/json" id="data">{}</script>'


def page(data: Mapping[str, Any] | None = None) -> str:
    """The page; `data` holds what `Inspector` gives, {"about": ..., "readings": [...]}. Without it the page is live."""
    text = (Path(__file__).parent / "web" / "index.html").read_text("utf8")
    if data is None:
        return text
    safe = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no text may end the element early
    assert text.count(EMPTY) == 1
    return text.replace(EMPTY, EMPTY.replace("{}", safe))
