"""What the service says of itself: the schemas in its OpenAPI description, and a page made of them.

The page needs no network, and the header that comes with a page allows the scripts and styles written in it, no other.
"""

import base64
import hashlib
import html
import json
import re
from typing import Any

Schema = dict[str, Any]
OBJECT: Schema = {"type": "object"}
LABEL: Schema = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "number"}],
    "description": "the label; a list of them, or a number, where the model was trained for that",
}
CHANCE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
CHANCES: Schema = {"type": "object", "additionalProperties": CHANCE}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


PREDICTIONS = _object(
    predictions=_list(
        _object(
            label=LABEL,
            probability={"anyOf": [CHANCE, _list(CHANCE), {"type": "null"}]},
            probabilities=CHANCES,
        )
    )
)
READINGS = _object(
    readings=_list(
        _object(
            text={"type": "string"},
            label=LABEL,
            probabilities=CHANCES,
            tokens=_list(_object(token={"type": "string"}, share={"type": "number"}, anchors=_list(OBJECT))),
            attention={"anyOf": [_list(_list({"type": "number"})), {"type": "null"}]},
        )
    )
)
ABOUT = _object(labels=_list({"type": "string"}), problem={"type": "string"}, anchors=_list(OBJECT))
HEALTH = _object(status={"const": "ready"}, version={"type": "string"}, model=OBJECT, limits=OBJECT)
ERROR = _object(detail={"type": "string"})
REASONS = {
    408: "the body did not arrive in time",
    409: "the model cannot be looked into",
    413: "the body is too large",
    415: "the body is not application/json",
    422: "the body is not what is asked for, or has more or longer texts than are taken",
    500: "the service failed; its log says why",
    503: "too much is waiting; the header Retry-After says when to come back",
}
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f4f4f4;padding:.75rem;overflow:auto}code{font-family:ui-monospace,monospace}"
    "@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{background:#262626}a{color:#8bf}}"
)


def described(most: int, chars: int, found: Schema, *statuses: int) -> dict[str, Any]:
    """What is said of a route that takes texts."""
    text = {"type": "string", "maxLength": chars}
    texts = {"anyOf": [text, {"type": "array", "items": text, "minItems": 1, "maxItems": most}]}
    body = {**_object(texts=texts), "additionalProperties": False}
    content = {"application/json": {"schema": body, "example": {"texts": ["a wading bird with long legs"]}}}
    return {
        "responses": responses(found, 408, 413, 415, 422, *statuses),
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def responses(found: Schema, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The answers of a route: what it gives, and how it may fail."""
    told: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {"schema": found}}}}
    for status in (*statuses, 500):
        told[status] = {"description": REASONS[status], "content": {"application/json": {"schema": ERROR}}}
    return told


def reference(about: Schema) -> str:
    """An OpenAPI description as a page."""
    parts = [f"<h1>{html.escape(about['info']['title'])}</h1><p>{html.escape(about['info']['description'])}</p>"]
    for path, methods in about["paths"].items():
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


def policy_of(page: str) -> str:
    """The content security policy of a page: its own scripts and styles, its own service, nothing else."""
    allowed = {}
    for tag in ("script", "style"):
        found = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}\s*>", page, re.DOTALL | re.IGNORECASE)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found]
        allowed[tag] = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
