"""`POST /v1/embeddings` in the shape of OpenAI's API, so that its clients work: vectors of texts.

An encoder gives its unit vectors, truncated where a request asks for fewer dimensions; a classifier its pooled ones.
"""

import base64
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ade.data.tokenize import tokenize
from ade.encoder import Encoder, unit
from ade.errors import InputError
from ade.runtime.runtime import Runtime
from ade.service.responses import check_texts, parse_object

FIELDS = ("input", "model", "encoding_format", "dimensions", "user")
FORMATS = ("float", "base64")


class Wanted(NamedTuple):
    """How a request wants its vectors: as numbers or in base64, and how many dimensions of each."""

    encoding: str
    dim: int


class Embedding(NamedTuple):
    """The vector of a text as JSON, and the number of its tokens."""

    vector: bytes
    tokens: int


def parse_embeddings(
    body: bytes, limits: tuple[int, int], dim: int, truncatable: bool = False
) -> tuple[list[str], Wanted]:
    """The texts of a body and how its vectors are wanted; an `InputError` for any other body.

    `limits` are the most texts and the most characters of each. `dim` is the width of the model's vectors; where they
    are `truncatable`, a body may ask for less.
    """
    parsed = parse_object(body, FIELDS, "input")
    texts = check_texts(parsed["input"], "input", *limits)
    encoding = parsed.get("encoding_format", "float")
    if encoding not in FORMATS:
        raise InputError(f'"encoding_format" must be "float" or "base64", not {json.dumps(encoding)}')
    wanted = parsed.get("dimensions")
    least = 1 if truncatable else dim
    if wanted is not None and not (isinstance(wanted, int) and wanted is not True and least <= wanted <= dim):
        allowed = f"from 1 to {dim}" if truncatable else f"{dim}, the width of this model,"
        raise InputError(f'"dimensions" must be {allowed} or be left out')
    return texts, Wanted(encoding, wanted or dim)


def embed(model: Runtime | Encoder, items: Sequence[tuple[str, Wanted]]) -> list[Embedding]:
    """The vector of each text, in order; every text is given with how its vector is wanted."""
    ids, offsets = tokenize(model.tokenizer, [text for text, _ in items], model.max_tokens)
    vectors = model.vectors(ids, offsets) if isinstance(model, Encoder) else model.pooled_vectors(ids, offsets)
    if not np.isfinite(vectors).all():
        raise ArithmeticError("the model's vectors are not finite")
    found = []
    for vector, tokens, (_, wanted) in zip(vectors, np.diff(offsets), items, strict=True):
        kept = unit(vector[None, : wanted.dim])[0] if isinstance(model, Encoder) else vector
        found.append(Embedding(_encoded(kept, wanted.encoding), int(tokens)))
    return found


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
