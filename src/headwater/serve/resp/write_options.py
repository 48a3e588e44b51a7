"""What a TWRITE or a TPWRITE asks for."""

from __future__ import annotations

from typing import NamedTuple

from headwater.errors import InvalidInput
from headwater.log.keys import MAX_TAG_BYTES
from headwater.serve.resp.arguments import Arguments, text_of
from headwater.serve.resp.commands import Words, wrong_arity
from headwater.serve.resp.faults import syntax_error
from headwater.serve.stream_writes import Entries


class WriteOptions(NamedTuple):
    """Entries of this many bytes for a stream or a topic, and how they are written."""

    name: str
    entries: Entries
    size: int
    backlog: int | None = None
    producer: str | None = None
    sequence: int | None = None

    @property
    def alone(self) -> bool:
        """Whether these may be written together with those of others."""
        return self.backlog is None and self.producer is None


def write_options(words: Words) -> WriteOptions:
    """Read the arguments of a TWRITE or a TPWRITE; raises CommandRefused."""
    if len(words) == 4:
        tag, value = words[2], words[3]
        return WriteOptions(text_of(words[1]), [(_tag_of(tag), value)], len(tag) + len(value))
    arguments = Arguments(words)
    name = arguments.text()
    backlog = producer = sequence = None
    headers: dict[str, bytes] = {}
    for option in arguments.options():
        if option == "BACKLOG":
            backlog = arguments.number()
        elif option == "PRODUCER":
            producer, sequence = arguments.text(), arguments.number()
        elif option == "HEADERS":
            headers = arguments.pairs()
        elif option == "ENTRIES":
            break
        else:
            raise syntax_error()
    flat = arguments.rest()
    if not flat or len(flat) % 2:
        raise wrong_arity(words[0].decode("ascii", "replace"))
    size = sum(map(len, flat))
    entries: Entries = [
        (_tag_of(tag), value) for tag, value in zip(flat[::2], flat[1::2], strict=True)
    ]
    if headers:
        entries = [(*entry, headers) for entry in entries]
        size += len(entries) * sum(len(name) + len(value) for name, value in headers.items())
    return WriteOptions(name, entries, size, backlog, producer, sequence)


def _tag_of(tag: bytes) -> str:
    if len(tag) > MAX_TAG_BYTES:
        raise InvalidInput(f"a tag may have {MAX_TAG_BYTES} bytes, not {len(tag)}; make it smaller")
    return text_of(tag)
