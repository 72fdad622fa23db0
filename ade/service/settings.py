"""Limits of the service."""

from dataclasses import dataclass, field, fields
from typing import Any

from ade.errors import InputError


def _limit(default: float, help: str, least: float = 1) -> Any:
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True)
class ServiceSettings:
    """Limits of a request, of a batch, of what waits, and of a graceful shutdown."""

    max_bytes: int = _limit(1 << 20, "maximum bytes of a request body")
    max_texts: int = _limit(256, "maximum texts per request")
    max_chars: int = _limit(20_000, "maximum characters per text")
    max_requests: int = _limit(512, "maximum requests at once; further ones get status 503")
    timeout: float = _limit(30.0, "seconds in which a body must arrive, and then its answer", least=0.001)
    batch_tokens: int = _limit(1024, "maximum tokens per batch, estimated as a quarter of the bytes")
    queue_tokens: int = _limit(1 << 20, "maximum estimated tokens waiting; further requests get status 503")
    grace: float = _limit(2.0, "seconds after SIGTERM in which new requests are still accepted", least=0)

    def __post_init__(self) -> None:
        for each in fields(self):
            given, least = getattr(self, each.name), each.metadata["least"]
            if not given >= least:
                raise InputError(f"{each.name} must be at least {least}, not {given}")
