"""Bytes in JSON: text where they are UTF-8, else base64 with a mark beside it.

A large text that JSON would spell more than twice as long, because it consists of control
characters, is base64, too: so a value takes at most twice its bytes in a reply.

A field ``x`` that holds base64 has ``x_encoding: "base64"`` beside it in its record, or plain
``encoding`` when it is the record's only field of bytes. A field without the mark is text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

Encoding: TypeAlias = Literal["base64"]
BASE64: Final[Encoding] = "base64"
# From this size on it is counted how long a text is in JSON.
_LARGE: Final = 4 << 20
# JSON spells these with two characters, and the other controls with six.
_SHORT: Final = b'"\\\b\t\n\f\r'
_LONG: Final = bytes(set(range(32)) - set(_SHORT))


def to_text(data: str | bytes) -> tuple[str, Encoding | None]:
    """Return data as text, and its encoding when it is not UTF-8, or JSON would make it long."""
    if len(data) >= _LARGE:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if _escapes(raw) > len(raw):
            return base64.b64encode(raw).decode(), BASE64
    if isinstance(data, str):
        return data, None
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), BASE64


def _escapes(data: bytes) -> int:
    """Return how many bytes more than it has a text takes in JSON."""
    long, short = (len(data) - len(data.translate(None, signs)) for signs in (_LONG, _SHORT))
    return 5 * long + short


def to_texts(values: Mapping[str, bytes]) -> tuple[dict[str, str], Encoding | None]:
    """Return values as text, or all of them as base64 when one of them is not UTF-8."""
    try:
        return {name: value.decode() for name, value in values.items()}, None
    except UnicodeDecodeError:
        encoded = {name: base64.b64encode(value).decode() for name, value in values.items()}
        return encoded, BASE64


def from_text(text: str, encoding: Encoding | None) -> str | bytes:
    """Return what ``to_text`` was given, text as str; raises ValueError for what is not base64."""
    if encoding is None:
        return text
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{text[:200]!r} is not base64: {error}") from None
