"""The model card: the README.md of a model folder, made from its settings and metrics, for the Hugging Face hub."""

import re
from collections.abc import Mapping
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ade.codebook import Codebook, Table
from ade.configuration import CLASSIFIER, CODEBOOK, ENCODER, TAGGER, Config
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
TASKS = {CLASSIFIER: "text-classification", TAGGER: "token-classification", ENCODER: "sentence-similarity"}  # the hub's
CALLS = {
    CLASSIFIER: 'predict(["a text", "another"])',
    TAGGER: 'predict(["a sentence of words"])',
    ENCODER: 'encode(["a text", "another"]).shape',
}
USAGE = """## How to use it

`pip install ade-embeddings`, then with FOLDER a folder or this model's name on the hub:

```python
import ade  # registers the model with transformers

print(ade.load("FOLDER").{call})
```"""
PIPELINE = """

```python
import ade
from transformers import pipeline

print(pipeline("{task}", "FOLDER")("a text"))
```"""


def card(config: Config, table: Table, nbytes: int) -> str:
    """Return the model card, for a folder of which prediction reads `nbytes` bytes."""
    title, about, usage = "An ADE codebook", "", ""
    if config.kind != CODEBOOK:
        title = f"ADE on {config.metadata.get('data') or 'unnamed'}"
        last = "makes a vector" if config.kind == ENCODER else "predicts"
        about = f", one attention layer weighs them by context, and a linear layer {last}"
        usage = USAGE.format(call=CALLS[config.kind])
        if config.kind != ENCODER:  # transformers has no pipeline for vectors of texts
            usage += PIPELINE.format(task=TASKS[config.kind])
    made_of = "a sum of vectors put together from shared pieces"
    if isinstance(table, Codebook):
        made_of = "a weighted sum of a few shared anchor vectors"
    parts = [
        f"---\n{card_data(config)}\n---",
        f"# {title}",
        f"An Adaptive Dictionary Embeddings (ADE) model: every token is {made_of}{about}.",
        "\n".join(f"- {fact}" for fact in _facts(config, table, nbytes)),
        _metrics_table({split: config.metadata[split] for split in ("dev", "test") if config.metadata.get(split)}),
        usage,
        "Weights are safetensors; loading runs no code of this repository.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(config: Config, table: Table, nbytes: int) -> list[str]:
    metadata = config.metadata
    facts = [_purpose(config)]
    if config.labels and config.problem != REGRESSION:
        listed = [*config.labels[:MAX_LABELS], *(["..."] if len(config.labels) > MAX_LABELS else [])]
        facts.append(f"Labels: {', '.join(listed)}")
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


def _metrics_table(splits: Mapping[str, Mapping[str, Any]]) -> str:
    if not splits:
        return ""
    names = list(dict.fromkeys(name for metrics in splits.values() for name in metrics))
    rows = [["split", *names], ["---", *["---:"] * len(names)]]
    rows += [[split, *(_shown(metrics.get(name)) for name in names)] for split, metrics in splits.items()]
    return "## Metrics\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def card_data(config: Config) -> ModelCardData:
    """Return the metadata of the card, which the hub reads."""
    metadata, task = config.metadata, TASKS.get(config.kind)
    teacher, data = str(metadata.get("teacher") or ""), str(metadata.get("data") or "")
    fields: dict[str, Any] = {"library_name": "ade", "pipeline_tag": task, "tags": ["ade", "transformers"]}
    fields |= licence(metadata.get("license"))
    on_hub = r"[\w.-]+/[\w.-]+"  # files and folders are called by one word
    if re.fullmatch(on_hub, teacher):
        fields["base_model"] = teacher
    if re.fullmatch(on_hub, data):
        fields["datasets"] = [data]

    test = (metadata.get("test") or {}).items()
    known = {METRICS[name]: value for name, value in reversed(test) if name in METRICS and value is not None}
    if known and task is not None:
        name = data or "unnamed"
        fields["metrics"] = sorted(known)
        fields["model_name"] = f"ade-{re.sub(r'[^a-z0-9]+', '-', (data or 'model').lower()).strip('-')}"
        fields["eval_results"] = [
            EvalResult(task, name, name, metric, round(known[metric], 4), dataset_split="test")
            for metric in fields["metrics"]
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
