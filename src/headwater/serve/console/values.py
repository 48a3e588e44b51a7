"""Values and texts that producers wrote: read in bounded steps, and shown as JSON, Arrow or hex.

What is shown is exact: characters that a screen does not show, or that turn the order of the others
round, are spelled as escapes.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncStream
from headwater.log.types import Message
from headwater.serve.api.formats import check_uncompressed

# A producer may have written anything. So a value is opened only when it is short, its batches are
# checked in full before a row of them is looked at, and whatever is wrong with it makes it hex.
_MOST_BYTES: Final = 1024 * 1024
_ROWS: Final = 20
_FILE: Final = b"ARROW1\x00\x00"
_STREAM: Final = b"\xff\xff\xff\xff"
_MOST_TEXT: Final = 16_384
_FAULTS: Final = (
    pa.ArrowException,
    InvalidInput,
    ValueError,
    OSError,
    EOFError,
    StopIteration,
    TypeError,
    OverflowError,
    struct.error,
)


def arrow_text(value: bytes) -> str | None:
    """Return the columns and first rows of a value that is an Arrow file or stream, else None."""
    if not value.startswith((_FILE, _STREAM)) or len(value) > _MOST_BYTES:
        return None
    try:
        # A file is a stream with a magic word before it, and an index behind it.
        table = _table(value.removeprefix(_FILE))
        rows = table.slice(0, _ROWS).to_pylist()
    except _FAULTS:
        return None
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    shown = "\n".join(str(row)[:500] for row in rows)
    more = f"\n… {table.num_rows - _ROWS:,} more rows" if table.num_rows > _ROWS else ""
    return f"{table.num_rows:,} rows: {columns}\n{shown}{more}"[:_MOST_TEXT]


def _table(value: bytes) -> pa.Table:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(value))
    schema = pa.ipc.read_schema(reader.read_next_message())
    batches = []
    for message in reader:
        # Neither what is packed, which may become any size, nor dictionaries.
        if message.type != "record batch":
            raise ValueError
        check_uncompressed(message.metadata.to_pybytes())
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)


_SHOWN_BYTES: Final = 4096
# Indented JSON is longer than its bytes; so many of its characters are shown.
_SHOWN_JSON: Final = 4 * _SHOWN_BYTES
# A list of messages shows fifty values: larger ones are not indented.
_INDENTED_BYTES: Final = 1_000_000
# Larger values are neither indented nor opened as Arrow: pages keep only the beginning of them.
_KEPT_BYTES: Final = 1 << 20
_LINE: Final = 120
# No text has these, unlike tabs and ends of lines.
_BINARY: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Controls, what has no width, and what changes the direction; not the joiners of words and emoji.
_UNSEEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    r"\ufff9-\ufffb\U000e0000-\U000e007f]"
)


class CutValue(bytes):
    """The beginning of a value that is not kept whole; its length is that of the value."""

    size = 0

    def __len__(self) -> int:
        return self.size


def cut(value: bytes, most: int = _KEPT_BYTES) -> bytes:
    """Return as much of a value as pages show, if it has more than so many bytes."""
    if len(value) <= most:
        return value
    found = CutValue(value[:_SHOWN_BYTES])
    found.size = len(value)
    return found


def visible(text: object) -> str:
    """Return a text whose unseen characters are spelled as escapes, as Python spells them."""
    return _UNSEEN.sub(_escaped, str(text))


def line(text: object) -> str:
    """Return a text as one line of a list, cut where long."""
    shown = str(text)[: _LINE + 1]
    return visible(shown if len(shown) <= _LINE else shown[: _LINE - 1] + "…")


def hex_dump(value: bytes) -> str:
    """Spell bytes as hex beside their characters, 16 in a line; cut where long."""
    rows = []
    for at in range(0, min(len(value), _SHOWN_BYTES), 16):
        row = value[at : at + 16]
        text = "".join(chr(sign) if 32 <= sign < 127 else "." for sign in row)
        rows.append(f"{at:06x}  {row.hex(' '):<47}  {text}")
    return "\n".join(rows)


def payload(value: bytes) -> dict[str, Any]:
    """Return how a value is shown: JSON with its fields in order, text, or hex; cut where long.

    ``rest`` says how much is not shown, empty when all is.
    """
    text = _text(value)
    if text is None:
        return _as_bytes(value)
    indented = _indented(value)
    if indented is not None:
        rest = _rest(len(indented) - _SHOWN_JSON, "character")
        shown = _lines(indented[:_SHOWN_JSON])
        return {"kind": "json", "text": shown, "rest": rest, "line": line(text)}
    rest = _rest(len(value) - _SHOWN_BYTES, "byte")
    return {"kind": "text", "text": _lines(text), "rest": rest, "line": line(text)}


def _as_bytes(value: bytes) -> dict[str, Any]:
    table = arrow_text(value)
    if table is not None:
        first = table.partition("\n")[0]
        return {"kind": "arrow", "text": _lines(table), "rest": "", "line": line(first)}
    spelled = value[:_SHOWN_BYTES].hex(" ")
    rest = _rest(len(value) - _SHOWN_BYTES, "byte")
    return {"kind": "hex", "text": spelled, "rest": rest, "line": line(spelled)}


def _text(value: bytes) -> str | None:
    """Return what a value begins with as text; None for one that is no text."""
    cut = value[:_SHOWN_BYTES]
    try:
        # What is cut may end within a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(cut, final=len(cut) == len(value))
    except UnicodeDecodeError:
        return None
    return None if _BINARY.search(text) else text


def _indented(value: bytes) -> str | None:
    if not value or len(value) > _INDENTED_BYTES or isinstance(value, CutValue):
        return None
    try:
        return msgspec.json.format(value, indent=2).decode()
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return None


def _lines(text: str) -> str:
    """Return a text of several lines; their ends and tabs stay."""
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(visible, one.split("\t"))) for one in lines)


def _rest(count: int, unit: str) -> str:
    return f"{count:,} more {unit}{'s' * (count != 1)}" if count > 0 else ""


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


async def each_message(stream: AsyncStream[Any], first: int, last: int) -> AsyncIterator[Message]:
    """Yield the messages of a range of offsets that are there."""
    at = first
    while at <= last:
        passage = await stream.read_from(at, last - at + 1, max_bytes=LIST_BYTES)
        for message in passage.messages:
            if message.offset <= last:
                yield message
        if passage.next <= at:
            return
        at = passage.next


async def shown_messages(
    stream: AsyncStream[Any], first: int, last: int
) -> list[tuple[int, Message | None]]:
    """Return each offset of a range with its message, large values cut; None where it is gone."""
    found = {
        message.offset: msgspec.structs.replace(message, value=cut(message.value))
        async for message in each_message(stream, first, last)
    }
    return [(offset, found.get(offset)) for offset in range(first, last + 1)]
