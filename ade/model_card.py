"""The model card: the README.md of a model folder, made from its settings and metrics, for the Hugging Face hub."""

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ade.codebook import Codebook, Table
from ade.configuration import CODEBOOK, ENCODER, TAGGER, Config
from ade.data.problems import MULTI, REGRESSION

CARD = "README.md"
LICENCES = {  # as the hub spells them
    "afl-3.0", "agpl-3.0", "apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "cc", "cc-by-4.0", "cc-by-nc-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "gemma", "gpl", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "llama2", "llama3",
    "llama3.1", "llama3.2", "llama3.3", "mit", "mpl-2.0", "openrail", "unlicense",
}  # fmt: skip
METRICS = {  # our name of a metric -> the hub's
    "accuracy": "accuracy", "macro_f1": "f1", "micro_f1": "f1", "f1": "f1", "precision": "precision",
    "recall": "recall", "pearson": "pearsonr", "spearman": "spearmanr", "mean_error": "mae",
    "root_mean_square_error": "rmse", "r2": "r_squared",
}  # fmt: skip
MAX_LABELS = 40  # listed by name
CLASSIFICATION, TAGGING, SIMILARITY = "text-classification", "token-classification", "sentence-similarity"  # the hub's
USAGE = {
    CLASSIFICATION: 'predict(["a text", "another"])',
    TAGGING: 'predict(["a sentence of words"])',
    SIMILARITY: 'encode(["a text", "another"]).shape',
}
TASKS = {TAGGER: TAGGING, ENCODER: SIMILARITY}  # all others classify


def card(config: Config, table: Table, nbytes: int) -> str:
    """Return the model card, for a folder of which prediction reads `nbytes` bytes."""
    metadata, kind = config.metadata, TASKS.get(config.kind, CLASSIFICATION)
    codebook = config.kind == CODEBOOK
    shares = f"{len(table.anchors):,} anchors" if isinstance(table, Codebook) else f"{table.vocabulary:,} coded rows"
    made_of = "a weighted sum of a few shared anchor vectors"
    if not isinstance(table, Codebook):
        made_of = "a sum of vectors put together from shared pieces"
    last = "makes a vector" if config.kind == ENCODER else "predicts"
    rest = "" if codebook else f", one attention layer weighs them by context, and a linear layer {last}"

    lines = [f"- {_purpose(config)}"]
    if config.labels and config.problem != REGRESSION:
        listed = [*config.labels[:MAX_LABELS], *(["..."] if len(config.labels) > MAX_LABELS else [])]
        lines.append(f"- Labels: {', '.join(listed)}")
    lines.append(f"- Size: {nbytes:,} bytes, {shares} of width {table.dim}")
    if metadata.get("teacher"):
        what = "Encoder" if config.kind == ENCODER else "Embedding table"
        stated = f"licence: {metadata['license']}" if metadata.get("license") else "licence not known: look it up"
        lines.append(f"- {what} distilled from: {metadata['teacher']}, {stated}")
    if metadata.get("data"):
        rows = f", {metadata['rows']:,} rows" if metadata.get("rows") else ""
        lines.append(f"- Trained on: {metadata['data']}{rows}")
    if entries := (metadata.get("lexicon") or {}).get("entries"):
        lines.append(f"- Lexicon: scores of {entries:,} n-grams are added to the model's")

    parts = [
        f"---\n{card_data(config)}\n---",
        f"# ADE on {metadata.get('data') or 'unnamed'}" if not codebook else "# An ADE codebook",
        f"An Adaptive Dictionary Embeddings (ADE) model: every token is {made_of}{rest}.",
        "\n".join(lines),
        _metrics_table({split: metadata[split] for split in ("dev", "test") if metadata.get(split)}),
        "" if codebook else _usage(kind),
        "Weights are safetensors; loading runs no code of this repository.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _purpose(config: Config) -> str:
    if config.kind == CODEBOOK:
        return "A table of token embeddings, which models start from"
    if config.kind == ENCODER:
        return f"Gives each text a unit vector of {config.output_size} dimensions"
    if config.problem == REGRESSION:
        return "Predicts: a number for a text"
    any_of = "any" if config.problem == MULTI else "one"
    return f"Predicts: {any_of} of {len(config.labels)} labels for a {'word' if config.kind == TAGGER else 'text'}"


def _metrics_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    if not splits:
        return ""
    names = list(dict.fromkeys(name for metrics in splits.values() for name in metrics))
    rows = [["split", *names], ["---", *["---:"] * len(names)]]
    rows += [[split, *(_shown(metrics.get(name)) for name in names)] for split, metrics in splits.items()]
    return "## Metrics\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _usage(kind: str) -> str:
    text = f"""## How to use it

`pip install ade-embeddings`, then with FOLDER a folder or this model's name on the hub:

```python
import ade  # registers the model with transformers

print(ade.load("FOLDER").{USAGE[kind]})
```"""
    if kind == SIMILARITY:
        return text
    return f"""{text}

```python
import ade
from transformers import pipeline

print(pipeline("{kind}", "FOLDER")("a text"))
```"""


def card_data(config: Config) -> ModelCardData:
    """Return the metadata of the card, which the hub reads."""
    about, teacher = config.metadata, str(config.metadata.get("teacher") or "")
    data = str(about.get("data") or "")
    fields: dict[str, Any] = {
        "library_name": "ade",
        "pipeline_tag": None if config.kind == CODEBOOK else TASKS.get(config.kind, CLASSIFICATION),
        "tags": ["ade", "transformers"],
    }
    fields |= licence(about.get("license"))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", teacher):
        fields["base_model"] = teacher
    if re.fullmatch(r"[\w.-]+/[\w.-]+", data):  # a name on the hub; files and folders are called by one word
        fields["datasets"] = [data]
    test = about.get("test") or {}
    known = {METRICS[name]: value for name, value in reversed(test.items()) if name in METRICS and value is not None}
    if known:
        fields["metrics"] = sorted(known)
        fields["model_name"] = f"ade-{re.sub(r'[^a-z0-9]+', '-', (data or 'model').lower()).strip('-')}"
        fields["eval_results"] = [
            EvalResult(
                TASKS.get(config.kind, CLASSIFICATION),
                data or "unnamed",
                data or "unnamed",
                kind,
                round(value, 4),
                dataset_split="test",
            )
            for kind, value in sorted(known.items())
        ]
    return ModelCardData(**fields)


def licence(stated: str | None) -> dict[str, str]:
    """Return the license fields of the metadata, spelled as on the hub; none where the license is not known."""
    if not stated or not stated.strip():
        return {}
    plain = re.sub(r"[\s_]+", "-", re.sub(r"\s*licen[cs]e.*", "", stated.strip().splitlines()[0].lower()))
    plain = re.sub(r"^(the-)?apache(-software)?,?(-version)?(-2(\.0)?)?$", "apache-2.0", plain)
    if plain in LICENCES:
        return {"license": plain}
    return {"license": "other", "license_name": re.sub(r"[^a-z0-9.-]+", "-", plain).strip("-") or "unknown"}


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
