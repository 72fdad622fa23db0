"""The model card: the README.md of a model folder, made from its config and metrics, for the Hugging Face hub."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ade.configuration import AdeConfig
from ade.data.problems import ENCODER, MULTI, REGRESSION, TAGGER, names_of, problem_of
from ade.teachers import CONTEXTUAL

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
    CLASSIFICATION: 'ade.Classifier.load("FOLDER").predict(["a text", "another"])',
    TAGGING: 'ade.Tagger.load("FOLDER").predict(["a sentence of words"])',
    SIMILARITY: 'ade.load("FOLDER").encode(["a text", "another"]).shape',
}
TOKENS = {  # what a token is made of, by whether the table is coded
    False: "a weighted sum of a few shared anchor vectors",
    True: "a sum of vectors put together from shared pieces",
}
TEMPLATE = """---
{{ card_data }}
---

# ADE on {{ data }}

An Adaptive Dictionary Embeddings (ADE) model: every token is {{ tokens }}, one \
attention layer weighs them by context, and a linear layer {{ last_layer }}.

- {{ purpose }}
{% if labels %}- Labels: {{ labels }}
{% endif %}- Size: {{ size }}
{% if about.teacher %}- {{ distilled }} distilled from: {{ about.teacher }}, {{ license_note }}
{% endif %}{% if about.data %}- Trained on: {{ about.data }}{% if about.rows %}, {{ rows }} rows{% endif %}
{% endif %}{% if lexicon_entries %}- Lexicon: scores of {{ lexicon_entries }} n-grams are added to the model's
{% endif %}{% if splits %}
## Metrics

| split | {{ metric_names | join(" | ") }} |
| --- |{{ " ---: |" * metric_names | length }}
{% for split, cells in splits.items() %}| {{ split }} | {{ cells | join(" | ") }} |
{% endfor %}{% endif %}
## How to use it

`pip install ade-embeddings`, then with FOLDER a folder or this model's name on the hub:

```python
import ade  # registers the model with transformers

print({{ usage }})
```

{% if pipeline_tag %}```python
import ade
from transformers import pipeline

print(pipeline("{{ pipeline_tag }}", "FOLDER")("a text"))
```

{% endif %}Weights are safetensors; loading runs no code of this repository.
"""


def write_card(folder: Path, config: AdeConfig) -> None:
    """Write the model card of a folder that holds the other files of a model."""
    nbytes = (folder / "model.safetensors").stat().st_size
    (folder / CARD).write_text(card(config, nbytes), "utf8")


def record(folder: Path, config: AdeConfig, split: str, metrics: Mapping[str, Any]) -> None:
    """Add the metrics of a split to the config and the model card of a model folder."""
    config.about = {**config.about, split: dict(metrics)}
    config.save_pretrained(folder)
    write_card(folder, config)


def card(config: AdeConfig, nbytes: int) -> str:
    """Return the model card of a config, for weights of `nbytes` bytes."""
    about, labels = config.about, names_of(config.id2label, config.num_labels)
    problem = problem_of(config.problem_type, config.num_labels)
    kind = task(config)
    listed = [] if problem == REGRESSION else [*labels[:MAX_LABELS]]
    if len(labels) > MAX_LABELS:
        listed.append("...")
    unit = "word" if kind == TAGGING else "text"
    predicts = {MULTI: f"any of {len(labels)} labels for a text", REGRESSION: "a number for a text"}
    purpose = f"Predicts: {predicts.get(problem, f'one of {len(labels)} labels for a {unit}')}"
    if kind == SIMILARITY:
        purpose = f"Gives each text a unit vector of {config.output_size} dimensions"
    table = f"{config.vocab_size:,} coded rows" if config.coded else f"{config.anchors:,} anchors"
    splits = {split: about[split] for split in ("test", "dev") if about.get(split)}
    entries = (about.get("lexicon") or {}).get("entries")
    metric_names = list(dict.fromkeys(name for metrics in splits.values() for name in metrics))

    content = ModelCard.from_template(
        metadata(config),
        template_str=TEMPLATE,
        about=about,
        data=about.get("data") or "unnamed",
        tokens=TOKENS[bool(config.coded)],
        purpose=purpose,
        last_layer="makes a vector" if kind == SIMILARITY else "predicts",
        distilled="Encoder" if kind == SIMILARITY else "Embedding table",
        pipeline_tag="" if kind == SIMILARITY else kind,
        labels=", ".join(listed),
        size=f"{nbytes:,} bytes, {table} of width {config.hidden_size}",
        license_note=f"licence: {about['license']}" if about.get("license") else "licence not known: look it up",
        rows=f"{about.get('rows') or 0:,}",
        lexicon_entries=f"{entries:,}" if entries else "",
        splits={split: [_shown(splits[split].get(name)) for name in metric_names] for split in reversed(splits)},
        metric_names=metric_names,
        usage=USAGE[kind],
    )
    return f"{content}\n"


def metadata(config: AdeConfig) -> ModelCardData:
    """Return the metadata of the card, which the hub reads."""
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
    """Return the hub's name of the task a model solves."""
    kinds = {TAGGER: TAGGING, ENCODER: SIMILARITY}
    return next((kinds[name] for name in config.architectures or [] if name in kinds), CLASSIFICATION)


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
