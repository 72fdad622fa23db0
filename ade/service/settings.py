"""Limits of the service."""

from dataclasses import dataclass
from typing import Annotated

from ade.settings import at_least


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a request, of a batch, of what waits, and of a graceful shutdown."""

    max_bytes: Annotated[int, "maximum bytes of a request body"] = 1 << 20
    max_texts: Annotated[int, "maximum texts per request"] = 256
    max_chars: Annotated[int, "maximum characters per text"] = 20_000
    max_requests: Annotated[int, "maximum requests at once; further ones get status 503"] = 512
    timeout: Annotated[float, "seconds in which a body must arrive, and then its answer"] = 30.0
    batch_tokens: Annotated[int, "maximum tokens per batch, estimated as a quarter of the bytes"] = 1024
    queue_tokens: Annotated[int, "maximum estimated tokens waiting; further requests get status 503"] = 1 << 20
    grace: Annotated[float, "seconds after SIGTERM in which new requests are still accepted"] = 2.0

    def __post_init__(self) -> None:
        at_least(self, 1, "max_bytes", "max_texts", "max_chars", "max_requests", "batch_tokens", "queue_tokens")
        at_least(self, 0.001, "timeout")
        at_least(self, 0, "grace")
