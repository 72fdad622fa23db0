"""The model card: the README.md of a model folder, made from its settings and metrics, for the Hugging Face hub."""

import re
from typing import Any

from huggingface_hub import ModelCardData

from ade.codebook import Codebook, Table
from ade.configuration import CLASSIFIER, CODEBOOK, ENCODER, TAGGER, Config
from ade.data.problems import MULTI, REGRESSION

CARD = "README.md"
LICENCES = {  # as the hub spells them
    "agpl-3.0", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc-by-4.0", "cc-by-nc-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc0-1.0", "gemma", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "llama2", "llama3", "llama3.1", "llama3.2",
    "llama3.3", "mit", "mpl-2.0", "openrail", "unlicense",
}  # fmt: skip
MAX_LABELS = 40  # listed by name
TASKS = {CLASSIFIER: "text-classification", TAGGER: "token-classification", ENCODER: "sentence-similarity"}  # the hub's
CALLS = {
    CLASSIFIER: 'predict(["a text", "another"])',
    TAGGER: 'predict(["a sentence of words"])',
    ENCODER: 'encode(["a text", "another"]).shape',
}
USAGE = """## How to use it

`pip install ade-embeddings`, then with FOLDER a folder or this model's name on the hub:

```python
import ade

print(ade.load("FOLDER").{call})
```"""


def card(config: Config, table: Table, nbytes: int) -> str:
    """Return the model card, for a folder of which prediction reads `nbytes` bytes."""
    is_codebook = config.kind == CODEBOOK
    made_of = "a weighted sum of shared anchor vectors" if isinstance(table, Codebook) else "a sum of coded vectors"
    parts = [
        f"---\n{_hub_data(config)}\n---",
        "# An ADE codebook" if is_codebook else f"# ADE on {config.metadata.get('data') or 'unnamed'}",
        f"An Adaptive Dictionary Embeddings (ADE) model: every token is {made_of}.",
        "\n".join(f"- {fact}" for fact in _facts(config, table, nbytes)),
        _metrics_table(config),
        "" if is_codebook else USAGE.format(call=CALLS[config.kind]),
        "Weights are safetensors; loading runs no code of this repository.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _hub_data(config: Config) -> ModelCardData:
    """Return the metadata that the hub reads."""
    metadata = config.metadata
    fields: dict[str, Any] = {"library_name": "ade", "pipeline_tag": TASKS.get(config.kind)}
    fields |= licence(metadata.get("license"))
    for field, name in (("base_model", metadata.get("teacher")), ("datasets", metadata.get("data"))):
        if re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):  # on the hub: files and folders are called by one word
            fields[field] = name
    return ModelCardData(tags=["ade", "transformers"], **fields)


def licence(stated: str | None) -> dict[str, str]:
    """Return the license fields of the metadata, spelled as on the hub; none where the license is not known."""
    name = re.sub(r"[^a-z0-9.]+", "-", (stated or "").lower().replace("license", "")).strip("-")
    if not name:
        return {}
    return {"license": name} if name in LICENCES else {"license": "other", "license_name": name}


def _facts(config: Config, table: Table, nbytes: int) -> list[str]:
    metadata = config.metadata
    facts = [_purpose(config)]
    if config.labels and config.problem != REGRESSION:
        more = ", ..." if len(config.labels) > MAX_LABELS else ""
        facts.append(f"Labels: {', '.join(config.labels[:MAX_LABELS])}{more}")
    rows = f"{len(table.anchors):,} anchors" if isinstance(table, Codebook) else f"{table.vocabulary:,} coded rows"
    facts.append(f"Size: {nbytes:,} bytes, {rows} of width {table.dim}")
    if metadata.get("teacher"):
        what = "Encoder" if config.kind == ENCODER else "Embedding table"
        stated = f"licence: {metadata['license']}" if metadata.get("license") else "licence not known: look it up"
        facts.append(f"{what} distilled from: {metadata['teacher']}, {stated}")
    if metadata.get("data"):
        rows = f", {metadata['rows']:,} rows" if metadata.get("rows") else ""
        facts.append(f"Trained on: {metadata['data']}{rows}")
    if entries := (metadata.get("lexicon") or {}).get("entries"):
        facts.append(f"Lexicon: scores of {entries:,} n-grams are added to the model's")
    return facts


def _purpose(config: Config) -> str:
    if config.kind == CODEBOOK:
        return "A table of token embeddings, which models start from"
    if config.kind == ENCODER:
        return f"Gives each text a unit vector of {config.output_size} dimensions"
    if config.problem == REGRESSION:
        return "Predicts: a number for a text"
    any_of = "any" if config.problem == MULTI else "one"
    return f"Predicts: {any_of} of {len(config.labels)} labels for a {'word' if config.kind == TAGGER else 'text'}"


def _metrics_table(config: Config) -> str:
    splits = {split: config.metadata[split] for split in ("dev", "test") if config.metadata.get(split)}
    if not splits:
        return ""
    names = list(dict.fromkeys(name for metrics in splits.values() for name in metrics))
    rows = [["split", *names], ["---", *["---:"] * len(names)]]
    for split, metrics in splits.items():
        values = (metrics.get(name) for name in names)
        rows.append([split, *(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values)])
    return "## Metrics\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)
