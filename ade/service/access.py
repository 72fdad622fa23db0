"""Who may use the service: API keys, host names it answers for, origins of web pages."""

import base64
import binascii
import hmac
import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ade.errors import InputError

HEALTH = ("/health", "/health/ready")  # answered without a key, and however many requests there are
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
MIN_KEY = 16  # characters of a key
CHALLENGE = 'Bearer, Basic realm="ade", charset="UTF-8"'


@dataclass(frozen=True)
class Access:
    """API keys, none for a service open to all; host names, none for any; origins of pages that may send requests."""

    keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one a line; empty lines and lines that begin with # are skipped."""
    try:
        lines = path.read_text("utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InputError(f"{path}: the keys cannot be read ({reason})") from None

    numbered = [(i, line.strip()) for i, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    for i, key in numbered:
        if len(key) < MIN_KEY or not re.fullmatch(r"[\x21-\x7e]+", key):
            raise InputError(f"{path}, line {i}: a key has at least {MIN_KEY} ASCII characters and no spaces")
    if not numbered:
        raise InputError(f"{path}: has no key; write one of at least {MIN_KEY} characters in a line of its own")
    return tuple(key for _, key in numbered)


def hosts_of(bound: str, allowed: Collection[str]) -> tuple[str, ...]:
    """The names a request may give as its host: on a loopback address those of loopback, and those allowed.

    This refuses a page of another site that has made its own name point to 127.0.0.1 (DNS rebinding).
    """
    return (*LOOPBACK_HOSTS, *allowed) if allowed or ipaddress.ip_address(bound).is_loopback else ()


class AccessMiddleware:
    """Refuses requests for another host with status 400, and those without a key with 401."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self._keys = app, access.keys
        self._hosts = {host.lower().strip("[]") for host in access.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        headers = Headers(scope=scope)
        if self._hosts and host_name(headers.get("host", "")) not in self._hosts:
            detail = "the service does not answer for this host; allow it with --allowed-host"
            await JSONResponse({"detail": detail}, 400)(scope, receive, send)
        elif self._keys and scope["path"] not in HEALTH and not has_key(self._keys, headers):
            answer = JSONResponse({"detail": "an API key is needed"}, 401, {"www-authenticate": CHALLENGE})
            await answer(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def host_name(header: str) -> str:
    """The name in a Host header, without its port and the brackets of an IPv6 address."""
    match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?", header.strip())
    return (match[1] or match[2] or "").lower() if match else ""


def has_key(keys: Collection[str], headers: Headers) -> bool:
    """Whether a request has one of the keys: as bearer token, as X-API-Key, or as the password a browser asks for."""
    given = _given_key(headers).encode("utf8", "replace")
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]  # of all: it takes the same time for each
    return any(matches)


def _given_key(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode("utf8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "")
