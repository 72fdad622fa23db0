"""The inspector's page as HTML: live, asking the service that serves it, or a single file with its data inside."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXAMPLES = {  # a word with two senses, and a sentence for each
    "bank": (
        "money she deposited at the bank to pay her debts",
        "sloping land on the bank of the river beside the water",
    ),
    "spring": (
        "the season of spring when flowers bloom after winter",
        "a coiled metal spring that returns to its shape",
    ),
    "apple": (
        "a computer made by the apple company in california",
        "the sweet red apple eaten as a fruit",
    ),
    "crane": (
        "a machine with a crane that lifts heavy loads",
        "a large wading crane with long legs and a long neck",
    ),
}
EMBEDDED = '<script type="application/json" id="data">{}</script>'


def page(data: Mapping[str, Any] | None = None) -> str:
    """The page as HTML; embedded `data` is {"about": `Inspector.about()`, "readings": [`Inspector.read(text)`, ...]}.

    Without `data` the page is live: it asks the service it comes from.
    """
    html = (Path(__file__).parent / "web" / "index.html").read_text("utf8")
    if data is None:
        data = {"examples": [{"word": word, "texts": texts} for word, texts in EXAMPLES.items()]}
    embedded = json.dumps(data, separators=(",", ":"))
    embedded = embedded.replace("<", "\\u003c")  # so that no text ends the script element
    return html.replace(EMBEDDED, EMBEDDED.replace("{}", embedded))
