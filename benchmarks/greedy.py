"""Clients that send requests without end, in a process that imports so little that they begin at once.

`python -m benchmarks.greedy ADDRESS CLIENTS` reads the bodies of its requests from standard input, one in a line, and
prints a line when it starts to ask. A client asks again as soon as it has an answer, after the time of `Retry-After`
where it is status 503.
"""

import asyncio
import sys

HEAD = "POST /predict HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"


def request_of(host: str, body: bytes) -> bytes:
    """The bytes of a request."""
    return HEAD.format(host, len(body)).encode() + body


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, float]:
    """Status of an answer, and the seconds to wait before asking again."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
    await reader.readexactly(int(headers["content-length"]))
    return int(head.split()[1]), float(headers.get("retry-after", 0))


async def ask(address: str, bodies: list[bytes], clients: int) -> None:
    """Send requests from so many clients, until the process is ended."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    connections = [await asyncio.open_connection(host, int(port)) for _ in range(clients)]
    print("asking", flush=True)
    requests = [request_of(host, body) for body in bodies]
    await asyncio.gather(
        *(_client(*connection, requests[i % len(requests)]) for i, connection in enumerate(connections))
    )


async def _client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    while True:
        writer.write(request)
        await writer.drain()
        _, wait = await read_answer(reader)
        await asyncio.sleep(wait)


if __name__ == "__main__":
    asyncio.run(ask(sys.argv[1], sys.stdin.buffer.read().splitlines(), int(sys.argv[2])))
