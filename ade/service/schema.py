"""The OpenAPI description of the service, the reference page made from it, and the content security policy of pages.

The reference page loads nothing from elsewhere, and the policy allows only the scripts and styles a page contains.
"""

import base64
import hashlib
import html
import json
import re
from typing import Any

from ade.settings import ServiceSettings

Schema = dict[str, Any]
OBJECT: Schema = {"type": "object"}
LABEL: Schema = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "number"}],
    "description": "the label; a list of them, or a number, where the model was trained for that",
}
PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
PROBABILITIES: Schema = {"type": "object", "additionalProperties": PROBABILITY}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


WORDS: Schema = {"type": "array", "items": {"type": "string"}}
PREDICTION = _object(
    label=LABEL,
    probability={"anyOf": [PROBABILITY, _list(PROBABILITY), {"type": "null"}]},
    probabilities=PROBABILITIES,
)
TAGS = {**_object(words=WORDS, tags=WORDS), "description": "of a tagger: a tag for each word"}
PREDICTIONS = _object(predictions=_list({"anyOf": [PREDICTION, TAGS]}))
NUMBER: Schema = {"type": "number"}
PER_LABEL: Schema = {"type": "array", "items": NUMBER, "description": "one number per label, in the order of `labels`"}
EXPLANATION = _object(
    text={"type": "string"},
    label=LABEL,
    labels=_list({"type": "string"}),
    probabilities=PROBABILITIES,
    scores={**PER_LABEL, "description": "the score (logit) of each label: what all contributions add up to"},
    bias=PER_LABEL,
    lexicon_bias=PER_LABEL,
    words=_list(
        _object(
            text={"type": "string"},
            start={"type": "integer"},
            end={"type": "integer"},
            tokens=_list({"type": "integer"}),
            pooling_weight=NUMBER,
            pooled={**PER_LABEL, "description": "what the word adds through attention pooling"},
            lexicon={**PER_LABEL, "description": "its part of the n-grams"},
        )
    ),
    ngrams=_list(_object(text={"type": "string"}, spans=_list(_list({"type": "integer"})), contributions=PER_LABEL)),
)
EXPLANATIONS = _object(explanations=_list(EXPLANATION))
READINGS = _object(
    readings=_list(
        _object(
            text={"type": "string"},
            label=LABEL,
            probabilities=PROBABILITIES,
            truncated={"type": "boolean", "description": "whether tokens and attention are of the first tokens only"},
            tokens=_list(_object(token={"type": "string"}, share={"type": "number"}, anchors=_list(OBJECT))),
            attention={"anyOf": [_list(_list({"type": "number"})), {"type": "null"}]},
            explanation=EXPLANATION,
        )
    )
)
ABOUT = _object(labels=_list({"type": "string"}), problem={"type": "string"}, anchors=_list(OBJECT))
STATUS = _object(status={"type": "string"})
HEALTH = _object(status={"enum": ["ready", "stopping"]}, version={"type": "string"}, model=OBJECT, limits=OBJECT)
VECTOR: Schema = {"anyOf": [_list(NUMBER), {"type": "string", "description": "float32 values in base64"}]}
EMBEDDINGS = _object(
    object={"const": "list"},
    data=_list(_object(object={"const": "embedding"}, index={"type": "integer"}, embedding=VECTOR)),
    model={"type": "string"},
    usage=_object(prompt_tokens={"type": "integer"}, total_tokens={"type": "integer"}),
)
ERROR = _object(detail={"type": "string"})
ERRORS = {
    408: "the body did not arrive in time",
    409: "the model cannot do this",
    413: "the body is too large",
    415: "the body is not application/json",
    422: "the body does not fit the schema, or has more or longer texts than the limits allow",
    500: "the service failed; its log says why",
    503: "too many requests are waiting, or this one has for too long; the header Retry-After says when to try again",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f4f4f4;padding:.75rem;overflow:auto}code{font-family:ui-monospace,monospace}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}a{color:#8bf}}"
)


def openapi(version: str, settings: ServiceSettings, can_inspect: bool = True) -> Schema:
    """The OpenAPI description of the service, with its limits."""
    operations = _operations(settings)
    if not can_inspect:
        operations = {name: operation for name, operation in operations.items() if name not in ("inspect", "about")}
    paths = {
        f"/{name}": {"post" if "requestBody" in operation else "get": {"operationId": name, **operation}}
        for name, operation in operations.items()
    }
    about = "Labels of texts, and inspection of the model that predicts them."
    return {"openapi": "3.1.0", "info": {"title": "ade", "version": version, "description": about}, "paths": paths}


def _operations(settings: ServiceSettings) -> Schema:
    """Description, body and responses of each route but those for people and the one that loads a model."""
    metrics = {"description": "OK", "content": {"text/plain": {"schema": {"type": "string"}}}}
    short = _texts_body(settings.inspect_texts, settings.inspect_chars)
    top_k = {"type": "integer", "minimum": 1, "description": "how many of the most probable labels are answered"}
    return {
        "predict": {
            "description": "Predict the label of a text, or of each of a list of texts, with their probabilities.",
            "requestBody": _texts_body(settings.max_texts, settings.max_chars, top_k=top_k),
            "responses": _responses(PREDICTIONS, 408, 413, 415, 422, 503),
        },
        "v1/embeddings": {
            "description": "The vector of a text, or of each of a list of texts, as in OpenAI's API.",
            "requestBody": _embeddings_body(settings.max_texts, settings.max_chars),
            "responses": _responses(EMBEDDINGS, 408, 409, 413, 415, 422, 503),
        },
        "explain": {
            "description": "What every word and n-gram of a text adds to the score of every label.",
            "requestBody": short,
            "responses": _responses(EXPLANATIONS, 408, 409, 413, 415, 422, 503),
        },
        "inspect": {
            "description": "For each token of a text its anchors, its pooling weight (share) and its attention.",
            "requestBody": short,
            "responses": _responses(READINGS, 408, 409, 413, 415, 422, 503),
        },
        "about": {
            "description": "Labels and anchors of the model; each anchor with its nearest words and map coordinates.",
            "responses": _responses(ABOUT, 409, 503),
        },
        "health": {
            "description": "Whether the service is ready or stopping, which model it serves, and its limits.",
            "responses": _responses(HEALTH),
        },
        "health/live": {"description": "Answered while the process works.", "responses": _responses(STATUS)},
        "health/ready": {
            "description": "Whether requests should be sent here: not once the service is stopping.",
            "responses": _responses(STATUS, 503),
        },
        "metrics": {
            "description": "Requests, latencies and batches in Prometheus' text format.",
            "responses": {"200": metrics},
        },
    }


def _texts_body(max_texts: int, max_chars: int, **optional: Schema) -> Schema:
    """The body of a request that takes texts."""
    schema = {**_object(texts=_texts(max_texts, max_chars)), "additionalProperties": False}
    schema["properties"] |= optional
    return _body(schema, {"texts": ["a wading bird with long legs"]})


def _embeddings_body(max_texts: int, max_chars: int) -> Schema:
    schema = {**_object(input=_texts(max_texts, max_chars)), "additionalProperties": False}
    schema["properties"] |= {
        "model": {"description": "not used: a service has one model"},
        "encoding_format": {"enum": ["float", "base64"], "default": "float"},
        "user": {"description": "not used"},
    }
    return _body(schema, {"input": ["a wading bird with long legs"], "model": "model"})


def _texts(max_texts: int, max_chars: int) -> Schema:
    text = {"type": "string", "maxLength": max_chars}
    return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": max_texts}]}


def _body(schema: Schema, example: Schema) -> Schema:
    return {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}


def _responses(found: Schema, *statuses: int) -> Schema:
    """The responses of a route: the schema of its success, and the errors it may answer with."""
    responses: Schema = {"200": {"description": "OK", "content": {"application/json": {"schema": found}}}}
    for status in (*statuses, 500):
        error = {"description": ERRORS[status], "content": {"application/json": {"schema": ERROR}}}
        responses[str(status)] = error
    return responses


def reference_page(description: Schema) -> str:
    """An OpenAPI description as an HTML page."""
    info = description["info"]
    parts = [f"<h1>{html.escape(info['title'])}</h1><p>{html.escape(info['description'])}</p>"]
    for path, methods in description["paths"].items():
        for method, entry in methods.items():
            parts.append(f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>")
            parts.append(f"<p>{html.escape(entry.get('description', ''))}</p>")
            body = entry.get("requestBody")
            if body:
                parts.append(_pre("Body", body["content"]["application/json"]["schema"]))
            for status, answer in entry["responses"].items():
                schemas = [content.get("schema") for content in answer.get("content", {}).values()]
                title = f"{status} {answer['description']}"
                parts.append(_pre(title, schemas[0]) if status == "200" and schemas else f"<p>{html.escape(title)}</p>")
    parts.append('<p>The whole description: <a href="openapi.json">openapi.json</a></p>')
    head = f'<meta charset="utf-8"><title>ade</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _pre(title: str, schema: Schema | None) -> str:
    shown = html.escape(json.dumps(schema, indent=1), quote=False)
    return f"<details><summary>{html.escape(title)}</summary><pre>{shown}</pre></details>"


def content_security_policy(page: str) -> str:
    """The policy header of an HTML page: the scripts and styles it contains, requests to its own host, nothing else."""
    allowed = {}
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}\s*>", page, re.DOTALL | re.IGNORECASE)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        allowed[tag] = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
