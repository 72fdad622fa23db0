"""Who may use the service: API keys, the hosts it answers for, and other origins of browsers."""

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

HEALTH = ("/health", "/health/live", "/health/ready")  # answered without a key, and whatever else is going on
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
MIN_KEY = 16  # characters of a key
CHALLENGE = 'Bearer, Basic realm="ade", charset="UTF-8"'


@dataclass(frozen=True)
class Access:
    """API keys, none for a service open to all; names of hosts, none for any; origins of pages that may ask."""

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

    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise InputError(f"{path}: has no key; write one of at least {MIN_KEY} characters in a line of its own")
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if key in keys and (len(key) < MIN_KEY or not re.fullmatch(r"[\x21-\x7e]+", key)):
            raise InputError(f"{path}, line {number}: a key has at least {MIN_KEY} ASCII characters and no spaces")
    return keys


def hosts_of(bound: str, allowed: Collection[str]) -> tuple[str, ...]:
    """The names a request may give as its host: with a socket on loopback those of loopback, and those allowed.

    A page of another site that has made its own name point to 127.0.0.1 (DNS rebinding) is refused by this.
    """
    return (*LOOPBACK_HOSTS, *allowed) if allowed or ipaddress.ip_address(bound).is_loopback else ()


class AccessMiddleware:
    """Refuses requests for another host with status 400 and those without a key with 401; health is always answered."""

    def __init__(self, app: ASGIApp, access: "Access") -> None:
        self.app = app
        self._hosts = {host.lower().strip("[]") for host in access.hosts}
        self._keys = access.keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and (self._hosts or self._keys):
            headers = Headers(scope=scope)
            if self._hosts and host_name(headers.get("host", "")) not in self._hosts:
                detail = "the service does not answer for this host; allow it with --allowed-host"
                await JSONResponse({"detail": detail}, 400)(scope, receive, send)
                return
            if self._keys and scope["path"] not in HEALTH and not has_key(self._keys, headers):
                missing = JSONResponse({"detail": "an API key is needed"}, 401, {"www-authenticate": CHALLENGE})
                await missing(scope, receive, send)
                return
        await self.app(scope, receive, send)


def has_key(keys: Collection[str], headers: Headers, basic: bool = True) -> bool:
    """Whether a request has one of the keys; with `basic`, also as the password of a browser's dialogue."""
    given = _given_key(headers, basic).encode("utf8", "replace")
    matches = [hmac.compare_digest(given, key.encode()) for key in keys]  # all of them: it takes the same time for each
    return any(matches)


def host_name(header: str) -> str:
    """The name in a Host header, without its port and the brackets of an IPv6 address."""
    found = re.fullmatch(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?", header.strip())
    return (found[1] or found[2] or "").lower() if found else ""


def _given_key(headers: Headers, basic: bool) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic" and basic:
        try:
            return base64.b64decode(value, validate=True).decode("utf8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "")
