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
    "bat": (
        "a wooden bat used to hit the ball in a game",
        "a nocturnal bat with wings that eats insects",
    ),
    "crane": (
        "a machine with a crane that lifts heavy loads",
        "a large wading crane with long legs and a long neck",
    ),
    "plant": (
        "an industrial plant where cars are manufactured by workers",
        "a green plant with leaves and flowers in the garden",
    ),
}
EMBEDDED = '<script type="application/json" id="data">{}</script>'


def page(data: Mapping[str, Any] | None = None) -> str:
    """The page as HTML; embedded `data` is {"about": `Inspector.about()`, "readings": [`Inspector.read(text)`, ...]}.

    Without `data` the page is live: it asks the service it comes from.
    """
    text = (Path(__file__).parent / "web" / "index.html").read_text("utf8")
    data = {"examples": [{"word": word, "texts": texts} for word, texts in EXAMPLES.items()]} if data is None else data
    safe = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # so that no text ends the script element
    assert text.count(EMBEDDED) == 1
    return text.replace(EMBEDDED, EMBEDDED.replace("{}", safe))
