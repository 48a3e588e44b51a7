"""Dead letters of a consumer: what it gave up on one stream, in a stream of its own.

A letter is the message as it was, with its headers and five more that say where it came
from and why it was given up. They are no part of what makes two letters the same: a consumer that
was killed after it wrote one may fail with other words the next time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.errors import FormatNotInUse, ReusedSequence, StaleSequence
from headwater.failures import Cause, spelled
from headwater.headers import NO_HEADERS, Headers, encode_fields, with_header
from headwater.log.entries import batch_of_entries
from headwater.log.handles import StreamHandle
from headwater.log.reading import read_from
from headwater.log.types import Message
from headwater.log.writing import append
from headwater.store.call import Operation

ORIGIN: Final = "hw.dead-offset"
ATTEMPTS: Final = "hw.dead-attempts"
DELIVERED: Final = "hw.dead-delivered-ms"
ERROR_TYPE: Final = "hw.dead-error-type"
ERROR_TEXT: Final = "hw.dead-error-text"
EXPLANATION: Final = frozenset({ORIGIN, ATTEMPTS, DELIVERED, ERROR_TYPE, ERROR_TEXT})


def letters_stream(stream: str, consumer: str) -> str:
    """Return the name of the stream with what a consumer gave up of a stream."""
    return f"{stream}.{consumer}.dead"


class GivenUp(NamedTuple):
    """A message that a consumer gives up: after how many attempts, handled since when, and why."""

    message: Message
    attempts: int
    delivered_ms: int
    error: BaseException


class ConsumerLetter(NamedTuple):
    """A message that a consumer gave up; ``origin`` is its offset in ``stream``.

    ``attempts`` is how often it was handled alone, ``delivered_ms`` when the process that gave it
    up first handled it, ``cause`` the last error. All four are None in letters that were written
    while older clients may read the store. ``headers`` are those of the message, ``time_ms`` is
    when it was buried.
    """

    stream: str
    offset: int
    tag: str
    value: bytes
    time_ms: int
    origin: int | None
    attempts: int | None
    headers: Headers = NO_HEADERS
    delivered_ms: int | None = None
    cause: Cause | None = None

    @property
    def buried_ms(self) -> int:
        """When it became a dead letter."""
        return self.time_ms


class ConsumerLetters:
    """The dead letters of one consumer on one stream, which are in the stream ``name``."""

    def __init__(self, name: str, source: StreamHandle) -> None:
        self.name = name
        self._source = source.name
        self._registered = source.registered
        self._handle = StreamHandle(name, source.registered)

    def bury(self, given_up: GivenUp, producer: str) -> Operation[None]:
        """Write a letter, with the offset of its message as sequence.

        A repeat of it writes nothing, whatever the error says this time.
        """
        message = given_up.message
        bare = batch_of_entries([message], carry=False)
        letter = batch_of_entries([(message.tag, message.value, _explained(given_up))], carry=False)
        try:
            yield from self._write(letter, bare, producer, message.offset)
        except FormatNotInUse:
            # A client of an older release may read it, and knows no headers.
            yield from self._write(bare, bare, producer, message.offset)

    def _write(
        self, letter: pa.RecordBatch, bare: pa.RecordBatch, producer: str, sequence: int
    ) -> Operation[None]:
        try:
            yield from append(self._handle, letter, None, producer, sequence, like=bare)
        except (StaleSequence, ReusedSequence):
            # The consumer was moved back to before what it buried long ago, or its stream is
            # another one since: it is a new letter.
            yield from append(self._handle, letter, None, None, None)

    def dead(self, count: int) -> Operation[list[ConsumerLetter]]:
        """Return the oldest ``count`` letters; they stay where they are."""
        # A handle of its own: whether letters were lost is no matter of who looks at them.
        handle = StreamHandle(self.name, self._registered)
        passage = yield from read_from(handle, 1, count, None)
        return [self._opened(letter) for letter in passage.messages]

    def _opened(self, letter: Message) -> ConsumerLetter:
        known = dict(letter.headers)
        own = {name: value for name, value in known.items() if name not in EXPLANATION}
        origin, attempts, delivered = (
            int(known[name]) if name in known else None for name in (ORIGIN, ATTEMPTS, DELIVERED)
        )
        kind, text = (known.get(name, b"").decode() for name in (ERROR_TYPE, ERROR_TEXT))
        return ConsumerLetter(
            *(self._source, letter.offset, letter.tag, letter.value, letter.time_ms),
            *(origin, attempts, Headers.stored(encode_fields(own)), delivered),
            Cause(kind, text) if kind else None,
        )


def _explained(given_up: GivenUp) -> Headers:
    """Return the headers of a letter: those of its message, and what is known of its failure."""
    kind, _, text = spelled(given_up.error).partition("\n")
    stored = given_up.message.headers.encoded
    for name, value in (
        (ORIGIN, str(given_up.message.offset)),
        (ATTEMPTS, str(given_up.attempts)),
        (DELIVERED, str(given_up.delivered_ms)),
        (ERROR_TYPE, kind),
        (ERROR_TEXT, text),
    ):
        stored = with_header(stored, name, value.encode())
    return Headers.stored(stored)


def oldest(letters: Iterable[ConsumerLetter], count: int) -> list[ConsumerLetter]:
    """Return the oldest letters of several streams, in the order in which they were buried."""
    return sorted(letters, key=lambda letter: letter.buried_ms)[:count]
