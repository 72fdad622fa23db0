"""Keys, hosts and origins, request ids, compression and HEAD: what stands around every route."""

import base64
import gzip

import httpx
import pytest

from ade.errors import InputError
from ade.runtime.runtime import Runtime
from ade.service.access import Access, host_name, hosts_of, read_keys
from tests.conftest import PATIENT
from tests.service.conftest import got, posted, raw, running

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_every_route_but_health_needs_a_key(folder):
    with running(Runtime.load(folder), access=Access((KEY, OTHER))) as address:
        for path in ("/health", "/health/live", "/health/ready"):
            assert got(address, path).status_code == 200
        for path in ("/metrics", "/docs", "/openapi.json", "/nowhere"):
            answer = got(address, path)
            assert (answer.status_code, answer.json()) == (401, {"detail": "an API key is needed"})
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert posted(address, "rocket").status_code == 401

        basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
        right = [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {OTHER}"}, {"x-api-key": KEY},
                 {"authorization": f"Basic {basic}"}]  # fmt: skip
        for headers in right:
            assert httpx.get(f"{address}/metrics", headers=headers, timeout=PATIENT).status_code == 200
        wrong = [{"authorization": f"Bearer {KEY}x"}, {"authorization": KEY}, {"authorization": "Basic !!!"},
                 {"x-api-key": ""}, {"authorization": "Bearer"}, {"authorization": b"Bearer \xff\xfe"}]  # fmt: skip
        for headers in wrong:
            assert httpx.get(f"{address}/metrics", headers=headers, timeout=PATIENT).status_code == 401


def test_keys_are_lines_of_a_file(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(f"# of the team\n{KEY}\n\n  {OTHER}  \n")
    assert read_keys(file) == (KEY, OTHER)
    for content, says in (
        (b"", "has no key"), (b"# none\n", "has no key"), (b"short\n", "line 1: a key has at least 16"),
        (KEY.encode() + b"\nwith a space in it\n", "line 2"), (b"\xff", "not UTF-8"),
    ):  # fmt: skip
        file.write_bytes(content)
        with pytest.raises(InputError, match=says):
            read_keys(file)


def test_a_loopback_service_answers_for_its_own_names_alone(folder):
    """A page whose name was made to point to 127.0.0.1 sends that name as its host."""
    assert hosts_of("0.0.0.0", ()) == ()
    assert hosts_of("192.168.0.7", ()) == ()
    assert "::1" in hosts_of("::1", ())
    access = Access(hosts=hosts_of("127.0.0.1", ("Example.org",)))
    with running(Runtime.load(folder), access=access) as address:
        for host in (
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1:9",
            "[::1]:8000",
            "[::1]",
            "example.org",
            "example.org:443",
        ):
            answer = httpx.get(f"{address}/health", headers={"host": host}, timeout=PATIENT)
            assert answer.status_code == 200, host
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::1", "a:b:c"):
            answer = httpx.get(f"{address}/health", headers={"host": host}, timeout=PATIENT)
            assert (answer.status_code, set(answer.json())) == (400, {"detail"}), host
        assert raw(address, b"GET /health HTTP/1.0\r\n\r\n", end=False).startswith(b"HTTP/1.1 400")
    assert [host_name(header) for header in ("A.b:1", "[::1]:2", "x]:3", "")] == ["a.b", "::1", "", ""]


def test_pages_of_an_allowed_origin_may_ask(folder):
    access = Access(keys=(KEY,), origins=("https://example.org",))
    preflight = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    with running(Runtime.load(folder), access=access) as address:
        for origin, status in (("https://example.org", 200), ("https://evil.example", 400)):
            headers = {"origin": origin, **preflight}
            answer = httpx.options(f"{address}/predict", headers=headers, timeout=PATIENT)
            assert answer.status_code == status
            assert answer.headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        headers = {"origin": "https://example.org", "authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{address}/predict", json={"texts": "a"}, headers=headers, timeout=PATIENT)
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    with running(Runtime.load(folder)) as address:  # without the option nobody may
        headers = {"origin": "https://example.org", **preflight}
        assert httpx.options(f"{address}/predict", headers=headers, timeout=PATIENT).status_code == 405
        assert "access-control-allow-origin" not in httpx.get(f"{address}/health", headers=headers).headers


def test_a_request_has_an_id(address):
    def id_of(given: str | None) -> str:
        headers = {} if given is None else {"x-request-id": given}
        return httpx.get(f"{address}/health", headers=headers, timeout=PATIENT).headers["x-request-id"]

    assert id_of("abc-1.2:3") == "abc-1.2:3"
    assert id_of("x" * 128) == "x" * 128
    replaced = [id_of(given) for given in (None, "", "x" * 129, "two words", 'quote"', "<b>")]
    assert len(set(replaced)) == 6
    assert all(len(each) == 32 for each in replaced)
    assert len(got(address, "/nowhere").headers["x-request-id"]) == 32  # errors, too


def test_long_answers_are_compressed_for_those_who_take_it(address):
    for path in ("/docs", "/metrics", "/openapi.json"):
        plain = httpx.get(address + path, headers={"accept-encoding": "identity"}, timeout=PATIENT)
        with httpx.stream("GET", address + path, headers={"accept-encoding": "gzip"}, timeout=PATIENT) as answer:
            packed = b"".join(answer.iter_raw())
        assert "content-encoding" not in plain.headers
        assert answer.headers["content-encoding"] == "gzip"
        assert len(packed) < len(plain.content) / 2
        if path != "/metrics":  # which has changed since
            assert gzip.decompress(packed) == plain.content
    assert "content-encoding" not in got(address, "/health/live").headers
    body = gzip.compress(b'{"texts": "a"}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = httpx.post(f"{address}/predict", content=body, headers=headers, timeout=PATIENT)
    assert answer.status_code == 415


def test_head_is_get_without_a_body(address):
    for path in ("/health", "/health/live", "/health/ready", "/docs", "/openapi.json"):
        answer = httpx.head(address + path, headers={"accept-encoding": "identity"}, timeout=PATIENT)
        same = httpx.get(address + path, headers={"accept-encoding": "identity"}, timeout=PATIENT)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-length"] == str(len(same.content))
    assert httpx.head(f"{address}/predict", timeout=PATIENT).status_code == 405
    last = b"GET /health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = raw(address, b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n" + last, end=False)
    assert said.count(b"HTTP/1.1 200 OK") == 2
    assert said.count(b"{") == 1
