"""Lines of a stream: what has arrived, how it is split, and when a chunk of rows ends."""

import io
import os

import pytest

from ade.data.streams import LineStream, chunks


@pytest.mark.parametrize("data", [b"", b"a", b"a\n", b"a\nb", b"\n\na\r\n", "\ufeffä\n€\u2028x\n".encode()])
def test_lines_are_those_of_a_file(data):
    assert list(LineStream(io.BytesIO(data))) == data.decode("utf-8-sig").splitlines(True) if b"\xe2" not in data else [
        "ä\n", "€\u2028x\n",
    ]  # fmt: skip
    assert LineStream(io.BytesIO(data)).read() == data.decode("utf-8-sig")


def test_bytes_of_a_character_may_arrive_one_by_one():
    read, write = os.pipe()
    with open(read, "rb") as source:
        stream = LineStream(source)
        assert not stream.ready()
        for byte in "ä".encode():
            os.write(write, bytes([byte]))
            assert not stream.ready()
        os.write(write, b"\nrest")
        assert stream.ready()
        assert next(stream) == "ä\n"
        assert not stream.ready()
        os.close(write)
        assert stream.ready()  # the end has arrived
        assert list(stream) == ["rest"]


def test_what_is_not_utf8_is_an_error():
    with pytest.raises(UnicodeDecodeError):
        list(LineStream(io.BytesIO(b"a\n\xff\n")))


def test_a_chunk_ends_where_nothing_more_has_arrived():
    read, write = os.pipe()
    with open(read, "rb") as source:
        stream = LineStream(source)
        found = chunks(stream, 3, stream)
        os.write(write, b"1\n2\n3\n4\n5")
        assert next(found) == ["1\n", "2\n", "3\n"]
        assert next(found) == ["4\n"]
        os.close(write)
        assert list(found) == [["5"]]


def test_other_rows_come_in_full_chunks():
    assert list(chunks(range(5), 2)) == [[0, 1], [2, 3], [4]]
