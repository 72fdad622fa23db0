"""`POST /v1/embeddings` in the shape of OpenAI's API, so that its clients work: pooled vectors of texts."""

import base64
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ade.data.tokenize import tokenize
from ade.errors import InputError
from ade.runtime.runtime import Runtime
from ade.service.responses import check_texts, parse_object

FIELDS = ("input", "model", "encoding_format", "dimensions", "user")
FORMATS = ("float", "base64")


class Embedding(NamedTuple):
    """The vector of a text as JSON, and the number of its tokens."""

    vector: bytes
    tokens: int


def parse_embeddings(body: bytes, max_texts: int, max_chars: int, dim: int) -> tuple[list[str], str]:
    """The texts of a body and the format its vectors are asked for in; an `InputError` for any other body."""
    parsed = parse_object(body, FIELDS, "input")
    texts = check_texts(parsed["input"], "input", max_texts, max_chars)
    encoding = parsed.get("encoding_format", "float")
    if encoding not in FORMATS:
        raise InputError(f'"encoding_format" must be "float" or "base64", not {json.dumps(encoding)}')
    if parsed.get("dimensions", dim) not in (dim, None):
        raise InputError(f'"dimensions" must be {dim}, the width of this model, or be left out')
    return texts, encoding


def embed(runtime: Runtime, items: Sequence[tuple[str, str]]) -> list[Embedding]:
    """The vector of each text, in order; every text is given with the format it is asked for in."""
    ids, offsets = tokenize(runtime.tokenizer, [text for text, _ in items], runtime.max_tokens)
    vectors = runtime.pooled_vectors(ids, offsets)
    if not np.isfinite(vectors).all():
        raise ArithmeticError("the model's vectors are not finite")
    found = zip(vectors, np.diff(offsets), items, strict=True)
    return [Embedding(_encoded(vector, encoding), int(tokens)) for vector, tokens, (_, encoding) in found]


def _encoded(vector: np.ndarray, encoding: str) -> bytes:
    """A vector as JSON: a list of numbers, or float32 values of four bytes each in base64."""
    if encoding == "base64":
        return b'"%b"' % base64.b64encode(vector.astype("<f4").tobytes())
    return json.dumps(vector.astype(np.float64).round(9).tolist()).encode()


def embeddings_json(found: Sequence[Embedding], model: str) -> bytes:
    """The answer to a request, as OpenAI's clients read it."""
    data = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (i, each.vector) for i, each in enumerate(found)
    )
    tokens = sum(each.tokens for each in found)
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (tokens, tokens)
    return b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (data, json.dumps(model).encode(), usage)
