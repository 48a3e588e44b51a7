"""Headers are a small immutable map: what is accepted comes back, and nothing else is accepted."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater import Headers, InvalidInput
from headwater.kernel.headers import (
    MAX_HEADER_NAME_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
    encode_fields,
)

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)
VALUES = st.binary(max_size=9) | st.text(st.characters(codec="utf-8"), max_size=9)
MAPS = st.dictionaries(NAMES.filter(lambda name: not name.startswith("hw.")), VALUES, max_size=6)


@settings(max_examples=40, deadline=None)
@given(MAPS)
def test_what_is_accepted_comes_back(given: dict[str, bytes | str]) -> None:
    expected = {n: v.encode() if isinstance(v, str) else v for n, v in given.items()}
    headers = Headers(given)
    assert headers == expected == dict(Headers.stored(headers.encoded))
    assert list(headers) == sorted(given)
    assert len(headers.encoded) <= MAX_HEADERS_BYTES
    assert pickle.loads(pickle.dumps(headers)) == headers
    assert hash(headers) == hash(Headers(dict(reversed(given.items()))))


def test_headers_of_the_largest_size_are_accepted() -> None:
    name = "n" * MAX_HEADER_NAME_BYTES
    room = MAX_HEADERS_BYTES - len(encode_fields({name: bytes(300)})) + 300
    assert len(Headers({name: bytes(room)}).encoded) == MAX_HEADERS_BYTES
    with pytest.raises(InvalidInput, match=rf"may take {MAX_HEADERS_BYTES} bytes, not 4097"):
        Headers({name: bytes(room + 1)})
    assert len(Headers({f"n{i}": b"" for i in range(MAX_HEADERS)})) == MAX_HEADERS
    with pytest.raises(InvalidInput, match=f"may have {MAX_HEADERS} headers, not 33"):
        Headers({f"n{i}": b"" for i in range(MAX_HEADERS + 1)})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"": b""}, "the name of a header must be 1 to 128 visible ASCII"),
        ({"n" * 129: b""}, "the name of a header must be 1 to 128 visible ASCII"),
        ({"a b": b""}, "visible ASCII characters, not 'a b'"),
        ({"ü": b""}, "visible ASCII characters, not 'ü'"),
        ({"a\n": b""}, "visible ASCII"),
        ({b"a": b""}, "visible ASCII characters, not b'a'"),
        ({"hw.outbox": b""}, "begins with 'hw.'.*choose another name"),
        ({"a": 1}, "header 'a' must be bytes or str, not int"),
        ({"a": None}, "header 'a' must be bytes or str, not NoneType"),
        ({"a": "\ud800"}, "header 'a' is not valid Unicode"),
        ([("a", b"")], "headers must be a mapping"),
        ("a", "headers must be a mapping"),
        (0, "headers must be a mapping"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_cure(given: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Headers(given)


def test_headers_cannot_be_changed() -> None:
    headers: Any = Headers({"a": b"1"})
    with pytest.raises(TypeError):
        headers["a"] = b"2"
    assert repr(headers) == "Headers({'a': b'1'})"


def test_headers_that_were_read_are_taken_as_they_are() -> None:
    ours = Headers.stored(encode_fields({"hw.outbox": b"7"}))
    assert Headers(ours) == {"hw.outbox": b"7"}
