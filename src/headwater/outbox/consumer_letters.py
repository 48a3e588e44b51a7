"""Dead letters of a consumer: what it gave up on one stream, in a stream of its own.

A letter is the message as it was, with its headers and six more: where it came from, why it was
given up, and for which stream of that name SQL notes whether it counts (see given_up.py). They are
no part of what makes two letters the same: a consumer that was killed after it wrote one may fail
with other words the next time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.errors import ReusedSequence, StaleSequence
from headwater.kernel.failures import Cause, spelled
from headwater.kernel.headers import NO_HEADERS, Headers, encode_fields, first_of, with_header
from headwater.log.dead_letters import offset_of
from headwater.log.handles import StreamHandle, batch_of_entries
from headwater.log.reading import info, newest_sequence, read_from
from headwater.log.types import HeadedMessage, Message
from headwater.log.writing import append
from headwater.store.call import Operation
from headwater.store.letters import LetterFacts, LetterList, LetterPage

ORIGIN: Final = "hw.dead-offset"
ATTEMPTS: Final = "hw.dead-attempts"
DELIVERED: Final = "hw.dead-delivered-ms"
ERROR_TYPE: Final = "hw.dead-error-type"
ERROR_TEXT: Final = "hw.dead-error-text"
NOTED: Final = "hw.dead-noted"
EXPLANATION: Final = frozenset({ORIGIN, ATTEMPTS, DELIVERED, ERROR_TYPE, ERROR_TEXT, NOTED})


def letters_stream(stream: str, consumer: str) -> str:
    """Return the name of the stream with what a consumer gave up of a stream.

    No other consumer and stream have that name, nor a group unless it was given that name: dots of
    the consumer are spelled otherwise, and the letters of a group end in ``.dead``.
    """
    spelled_out = consumer.replace("%", "%25").replace(".", "%2E")
    return f"{stream}.{spelled_out}.sql-dead"


def place_among_letters(letters: str, created: int) -> str:
    """Return under which name a consumer keeps its position among letters.

    It is of the stream that was created then: another one of its name begins at its first letter.
    """
    return f"{letters}@{created}"


def is_among_letters(place: str, consumer: str) -> bool:
    """Return whether a position is that of a consumer among its own letters."""
    letters, _, created = place.rpartition("@")
    return created.isdecimal() and letters.endswith(letters_stream("", consumer))


class GivenUp(NamedTuple):
    """A message that a consumer gives up: after how many attempts, handled since when, and why."""

    message: Message
    attempts: int
    delivered_ms: int
    error: BaseException


class WrittenLetter(NamedTuple):
    """A letter at an offset; ``noted`` says of which stream its message is, by its creation.

    Such a letter counts only while SQL says so; None for one of which SQL notes nothing.
    """

    offset: int
    noted: int | None


class FoundLetter(NamedTuple):
    """What the log has at the offset of a letter, in a stream of letters that ends at ``last``.

    ``letter`` is None when it was evicted, ``created`` is which stream of letters it is.
    """

    letter: WrittenLetter | None
    created: int
    last: int


class ConsumerLetter(NamedTuple):
    """A message that a consumer gave up; ``origin`` is its offset in ``stream``.

    ``attempts`` is how often it was handled alone, ``delivered_ms`` when the process that gave it
    up first handled it, ``cause`` the last error. All four are None in what something else wrote to
    the stream of letters. ``headers`` are those of the message, ``time_ms`` is
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


class ConsumerLetters(LetterList[ConsumerLetter]):
    """The dead letters of one consumer on one stream, which are in the stream ``name``."""

    def __init__(self, name: str, source: StreamHandle) -> None:
        self.name = name
        self._source = source
        self._registered = source.registered
        self._handle = StreamHandle(name, source.registered)

    def bury(self, given_up: GivenUp, producer: str | None) -> Operation[WrittenLetter]:
        """Write a letter, with the offset of its message as sequence.

        A repeat of it writes nothing, whatever the error says this time. Without a producer it is
        a new letter, also if there was one of that message before.
        """
        noted = int(self._source.seen.created)  # of the stream that the message was read from
        return (yield from self._bury(given_up, producer, given_up.message.offset, noted))

    def _bury(
        self, given_up: GivenUp, producer: str | None, sequence: int, noted: int | None
    ) -> Operation[WrittenLetter]:
        message = given_up.message
        bare = batch_of_entries([message], carry=False)
        explained = _explained(given_up, noted)
        letter = batch_of_entries([(message.tag, message.value, explained)], carry=False)
        return WrittenLetter((yield from self._write(letter, bare, producer, sequence)), noted)

    def find(self, offset: int) -> Operation[FoundLetter]:
        """Return what the log has at the offset of a letter."""
        handle = StreamHandle(self.name, self._registered)
        passage = yield from read_from(handle, offset, 1, None)
        found = [
            WrittenLetter(offset, noted_of(letter))
            for letter in passage.messages
            if letter.offset == offset
        ]
        return FoundLetter(found[0] if found else None, int(handle.seen.created), passage.last)

    def _write(
        self, letter: pa.RecordBatch, bare: pa.RecordBatch, producer: str | None, sequence: int
    ) -> Operation[int]:
        if producer is not None:
            try:
                known = append(self._handle, letter, None, producer, sequence, like=bare)
                return (yield from known).start
            except (StaleSequence, ReusedSequence):
                # The consumer was moved back to before what it buried long ago, or its stream is
                # another one since: it is a new letter.
                pass
        return (yield from append(self._handle, letter, None, None, None)).start

    def count(self) -> Operation[int]:
        """Return how many there are."""
        return (yield from info(StreamHandle(self.name, self._registered))).length

    def page(
        self, place: str, count: int, max_bytes: int | None = None
    ) -> Operation[LetterPage[ConsumerLetter]]:
        """Return up to ``count`` letters from a place on, which is an offset in their stream."""
        # A handle of its own: whether letters were lost is no matter of who looks at them.
        handle = StreamHandle(self.name, self._registered)
        at = offset_of(place) or 1
        passage = yield from read_from(handle, at, count, None, max_bytes=max_bytes)
        letters = [self._opened(letter) for letter in passage.messages]
        return LetterPage(letters, str(passage.next) if passage.next <= passage.last else None)

    def facts(self, letter: ConsumerLetter) -> LetterFacts:
        """Return what is known of a letter."""
        attempts = letter.attempts or 0
        return LetterFacts(str(letter.origin), letter.tag, attempts, letter.cause, letter.buried_ms)

    def place_after(self, letter: ConsumerLetter) -> str:
        """Return the place behind a letter."""
        return str(letter.offset + 1)

    def _opened(self, letter: Message) -> ConsumerLetter:
        known, own = dict(letter.headers), _own_headers(letter)
        origin, attempts, delivered = (
            int(known[name]) if name in known else None for name in (ORIGIN, ATTEMPTS, DELIVERED)
        )
        kind, text = (known.get(name, b"").decode() for name in (ERROR_TYPE, ERROR_TEXT))
        return ConsumerLetter(
            *(self._source.name, letter.offset, letter.tag, letter.value, letter.time_ms),
            *(origin, attempts, own, delivered),
            Cause(kind, text) if kind else None,
        )


class ConsumerRedriven(NamedTuple):
    """What became of dead letters: ``handled`` have their effect, ``failed`` are letters again."""

    handled: int
    failed: int


class RedrivenLetters(ConsumerLetters):
    """Letters of which those that fail again become new ones, at the end of the same stream."""

    def bury(self, given_up: GivenUp, producer: str | None) -> Operation[WrittenLetter]:
        """Write a letter again; a repeat of it writes nothing. What was noted of it still is."""
        letter = given_up.message
        again = given_up._replace(message=original(letter))
        name = producer and _redriver(producer)
        return (yield from self._bury(again, name, letter.offset, noted_of(letter)))

    def newest(self, producer: str) -> Operation[int | None]:
        """Return the offset of the letter that was written again last; None without one."""
        return (yield from newest_sequence(self._handle.key, _redriver(producer)))


def _redriver(producer: str) -> str:
    """Return another producer than the one that wrote the letters, whose name is no longer."""
    return f"redriven:{producer.removeprefix('consumer:')}"


def original(letter: Message) -> Message:
    """Return the message that a letter was: its offset, its headers.

    What something else wrote to the stream of letters has the offset that it has there.
    """
    origin = letter.headers.get(ORIGIN)
    offset = letter.offset if origin is None else int(origin)
    plain = (offset, letter.tag, letter.value, letter.time_ms)
    headers = _own_headers(letter)
    return HeadedMessage(*plain, headers=headers) if headers else Message(*plain)


def noted_of(letter: Message) -> int | None:
    """Return which stream the message of a letter is of; None when SQL notes nothing of it."""
    noted = letter.headers.get(NOTED)
    return None if noted is None else int(noted)


def _own_headers(letter: Message) -> Headers:
    own = {name: value for name, value in letter.headers.items() if name not in EXPLANATION}
    return Headers.stored(encode_fields(own)) if own else NO_HEADERS


def _explained(given_up: GivenUp, noted: int | None) -> Headers:
    """Return the headers of a letter: those of its message, and what is known of its failure."""
    kind, _, text = spelled(given_up.error).partition("\n")
    stored = given_up.message.headers.encoded
    for name, value in (
        (ORIGIN, str(given_up.message.offset)),
        (ATTEMPTS, str(given_up.attempts)),
        (DELIVERED, str(given_up.delivered_ms)),
        (ERROR_TYPE, kind),
        (ERROR_TEXT, text),
        *([(NOTED, str(noted))] if noted is not None else []),
    ):
        stored = with_header(stored, name, value.encode())
    return Headers.stored(stored)


def oldest(
    letters: Iterable[ConsumerLetter], count: int, max_bytes: int | None
) -> list[ConsumerLetter]:
    """Return the oldest letters of several streams, in the order in which they were buried."""
    return first_of(sorted(letters, key=lambda letter: letter.buried_ms)[:count], max_bytes)
