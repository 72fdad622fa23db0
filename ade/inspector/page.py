"""The inspector's page as HTML: live, asking the service that serves it, or a single file with its data inside."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = (
    "money she deposited at the bank to pay her debts",
    "sloping land on the bank of the river beside the water",
)
EMBEDDED = '<script type="application/json" id="data">{}</script>'


def page(data: Mapping[str, Any] | None = None) -> str:
    """The page as HTML; embedded `data` is {"about": `Inspector.about()`, "readings": [`Inspector.read(text)`, ...]}.

    Without `data` the page is live: it asks the service it comes from.
    """
    text = (Path(__file__).parent / "web" / "index.html").read_text("utf8")
    if data is None:
        return text

    safe = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # so that no text ends the script element
    assert text.count(EMBEDDED) == 1
    return text.replace(EMBEDDED, EMBEDDED.replace("{}", safe))
