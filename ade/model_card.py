"""The model card: what a model folder says of itself on the Hugging Face hub, from its own config and figures."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from ade.configuration import AdeConfig
from ade.data.problems import MULTI, REGRESSION, TAGGER, names_of, problem_of
from ade.teachers import CONTEXTUAL

CARD = "README.md"
LICENCES = {  # as the hub spells them
    "afl-3.0", "agpl-3.0", "apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "cc", "cc-by-4.0", "cc-by-nc-4.0",
    "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "gemma", "gpl", "gpl-2.0", "gpl-3.0", "lgpl-3.0", "llama2", "llama3",
    "llama3.1", "llama3.2", "llama3.3", "mit", "mpl-2.0", "openrail", "unlicense",
}  # fmt: skip
METRICS = {  # of our figures, those the hub has a name for
    "accuracy": "accuracy", "macro_f1": "f1", "micro_f1": "f1", "f1": "f1", "precision": "precision",
    "recall": "recall", "pearson": "pearsonr", "spearman": "spearmanr", "mean_error": "mae",
    "root_mean_square_error": "rmse", "r2": "r_squared",
}  # fmt: skip
MOST_LABELS = 40  # listed by name


def write_card(folder: Path, config: AdeConfig) -> None:
    """Write the card of a model folder whose other files are there."""
    nbytes = (folder / "model.safetensors").stat().st_size
    (folder / CARD).write_text(card(config, nbytes), "utf8")


def record(folder: Path, config: AdeConfig, split: str, figures: Mapping[str, Any]) -> None:
    """Add figures of a split to what a finished model folder says of itself."""
    config.about = {**config.about, split: dict(figures)}
    config.save_pretrained(folder)
    write_card(folder, config)


def card(config: AdeConfig, nbytes: int) -> str:
    """The card: the metadata the hub reads, then what a person reads."""
    about = config.about
    data = about.get("data") or "unnamed"
    text = f"---\n{metadata(config).to_yaml()}\n---\n\n# ADE on {data}\n\n{_what(config, nbytes)}\n"
    figures = {split: about[split] for split in ("dev", "test") if about.get(split)}
    if figures:
        text += "\n## Figures\n\n| split | " + " | ".join(name for name in _names(figures)) + " |\n"
        text += "| --- |" + " ---: |" * len(_names(figures)) + "\n"
        for split, found in figures.items():
            text += f"| {split} | " + " | ".join(_shown(found.get(name)) for name in _names(figures)) + " |\n"
    return text + _how(config)


def metadata(config: AdeConfig) -> ModelCardData:
    """What the hub reads of a model."""
    about, teacher = config.about, str(config.about.get("teacher") or "")
    data = str(about.get("data") or "")
    fields: dict[str, Any] = {"library_name": "ade", "pipeline_tag": task(config), "tags": ["ade", "transformers"]}
    fields |= licence(about.get("license"))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", teacher.removesuffix(CONTEXTUAL)):
        fields["base_model"] = teacher.removesuffix(CONTEXTUAL)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", data):  # a name on the hub; files and folders are called by one word
        fields["datasets"] = [data]
    test = about.get("test") or {}
    known = {METRICS[name]: value for name, value in reversed(test.items()) if name in METRICS and value is not None}
    if known:
        fields["metrics"] = sorted(known)
        fields["model_name"] = f"ade-{re.sub(r'[^a-z0-9]+', '-', (data or 'model').lower()).strip('-')}"
        fields["eval_results"] = [
            EvalResult(task(config), data or "unnamed", data or "unnamed", kind, round(value, 4), dataset_split="test")
            for kind, value in sorted(known.items())
        ]
    return ModelCardData(**fields)


def task(config: AdeConfig) -> str:
    """The hub's name of what a model does."""
    return "token-classification" if TAGGER in (config.architectures or []) else "text-classification"


def licence(stated: str | None) -> dict[str, str]:
    """A licence as the hub spells it; nothing where none is known."""
    if not stated or not stated.strip():
        return {}
    plain = re.sub(r"[\s_]+", "-", re.sub(r"\s*licen[cs]e.*", "", stated.strip().splitlines()[0].lower()))
    plain = re.sub(r"^(the-)?apache(-software)?,?(-version)?(-2(\.0)?)?$", "apache-2.0", plain)
    if plain in LICENCES:
        return {"license": plain}
    return {"license": "other", "license_name": re.sub(r"[^a-z0-9.-]+", "-", plain).strip("-") or "unknown"}


def _what(config: AdeConfig, nbytes: int) -> str:
    about, labels = config.about, names_of(config.id2label, config.num_labels)
    kind = problem_of(config.problem_type, config.num_labels)
    answer = {
        MULTI: f"any of {len(labels)} labels for a text",
        REGRESSION: "a number for a text",
    }.get(kind, f"one of {len(labels)} labels for a {'word' if task(config) == 'token-classification' else 'text'}")
    lines = [
        "An Adaptive Dictionary Embeddings (ADE) model: every token is a handful of shared anchor vectors, one "
        "attention layer weighs them by context, and a linear layer answers.",
        "",
        f"- Answers: {answer}",
    ]
    if kind != REGRESSION:
        lines.append(f"- Labels: {', '.join(labels[:MOST_LABELS])}{', ...' if len(labels) > MOST_LABELS else ''}")
    lines.append(f"- Size: {nbytes:,} bytes, {config.anchors:,} anchors of width {config.hidden_size}")
    if about.get("teacher"):
        terms = f", licence: {about['license']}" if about.get("license") else ", licence not known: look it up"
        lines.append(f"- Embedding table distilled from: {about['teacher']}{terms}")
    if about.get("data"):
        lines.append(f"- Trained on: {about['data']}" + (f", {about['rows']:,} rows" if about.get("rows") else ""))
    if about.get("lexicon", {}).get("entries"):
        lines.append(f"- Lexicon: scores of {about['lexicon']['entries']:,} n-grams are added to the model's")
    return "\n".join(lines)


def _names(figures: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for split in reversed(list(figures)) for name in figures[split]))


def _shown(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def _how(config: AdeConfig) -> str:
    tagging = task(config) == "token-classification"
    use = (
        'ade.Tagger.load("FOLDER").predict(["a sentence of words"])'
        if tagging
        else 'ade.Classifier.load("FOLDER").predict(["a text", "another"])'
    )
    return f"""
## How to use it

`pip install ade-embeddings`, then with FOLDER a folder or this model's name on the hub:

```python
import ade  # registers the model with transformers

print({use})
```

```python
import ade
from transformers import pipeline

print(pipeline("{task(config)}", "FOLDER")("a text"))
```

Weights are safetensors; loading runs no code of this repository.
"""
