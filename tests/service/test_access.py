"""Keys and hosts."""

import base64

import pytest

from ade.errors import InputError
from ade.service.middleware import hosts_of, read_keys
from ade.service.model import ServedModel
from tests.service.conftest import got, predicted, raw, running

KEY, OTHER = "0123456789abcdef", "fedcba9876543210"


def test_every_route_but_health_needs_a_key(folder):
    with running(ServedModel.load(folder), keys=(KEY, OTHER)) as address:
        assert got(address, "/health").status_code == 200
        for path in ("/metrics", "/docs", "/openapi.json", "/model", "/", "/nowhere"):
            answer = got(address, path)
            assert (answer.status_code, answer.json()) == (401, {"detail": "an API key is needed"})
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert predicted(address, "rocket").status_code == 401

        basic = base64.b64encode(f"anyone:{KEY}".encode()).decode()
        right = [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {OTHER}"}, {"x-api-key": KEY},
                 {"authorization": f"Basic {basic}"}]  # fmt: skip
        wrong = [{"authorization": f"Bearer {KEY}x"}, {"authorization": KEY}, {"authorization": "Basic !!!"},
                 {"x-api-key": ""}, {"authorization": "Bearer"}, {"authorization": b"Bearer \xff\xfe"}]  # fmt: skip
        for status, headers in [*((200, each) for each in right), *((401, each) for each in wrong)]:
            assert got(address, "/model", **headers).status_code == status, headers


def test_keys_are_lines_of_a_file(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(f"# of the team\n{KEY}\n\n  {OTHER}  \n")
    assert read_keys(file) == (KEY, OTHER)
    for content, says in (
        (b"", "at least one key"), (b"# none\n", "at least one key"), (b"short\n", "16 or more ASCII characters"),
        (KEY.encode() + b"\nwith a space in it\n", "without spaces"), (b"\xff", "not UTF-8 text in line 1"),
    ):  # fmt: skip
        file.write_bytes(content)
        with pytest.raises(InputError, match=says):
            read_keys(file)


def test_a_loopback_service_answers_for_its_own_names_alone(folder):
    """A page whose name was made to point to 127.0.0.1 sends that name as its host."""
    assert hosts_of("0.0.0.0", ()) == hosts_of("192.168.0.7", ()) == ()
    assert "::1" in hosts_of("::1", ())
    own = ("localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8000", "[::1]", "example.org", "example.org:443")
    others = ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::1")
    with running(ServedModel.load(folder), hosts=hosts_of("127.0.0.1", ("Example.org",))) as address:
        for host in own:
            assert got(address, "/health", host=host).status_code == 200, host
        for host in others:
            answer = got(address, "/health", host=host)
            assert (answer.status_code, set(answer.json())) == (400, {"detail"}), host
        assert raw(address, b"GET /health HTTP/1.0\r\n\r\n", end=False).startswith(b"HTTP/1.1 400")
