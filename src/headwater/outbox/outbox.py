"""The outbox: messages for the log, kept in the transaction's database until they are there.

A row that is staged becomes a message if and only if the transaction that staged it commits. A
streamer brings it to the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, overload

import msgspec
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.errors import InvalidInput, NotCreated
from headwater.kernel.headers import Carried, GivenHeaders, encode_headers
from headwater.log.aio_stream import AsyncStream
from headwater.log.keys import MAX_TAG_BYTES, MAX_VALUE_BYTES, check_name
from headwater.log.stream import Stream
from headwater.outbox.batches import StagedRow, StreamedBatch
from headwater.outbox.database import open_database
from headwater.outbox.plan import AnyStream
from headwater.outbox.schema import SCHEMA, check_dialect, outbox_table
from headwater.outbox.staging import (
    AnyAsyncConnection,
    Row,
    SyncConnection,
    write_rows,
)
from headwater.outbox.status import Status, read_status
from headwater.sql.driver_errors import is_missing_table, safe_name, translating_errors

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    E = TypeVar("E", Engine, AsyncEngine, default=Engine)
else:
    from typing import TypeVar

    E = TypeVar("E")

# Names are checked once each; more of them than this are not remembered.
_MANY_NAMES = 10_000
StagedEntry: TypeAlias = "tuple[str, Any] | tuple[str, Any, GivenHeaders | None]"


class Outbox(Generic[E]):
    """Where transactions stage messages; ``engine`` is SQLAlchemy's, for SQLite or Postgres.

    ``encode`` turns a value that is neither bytes nor str into bytes; by default, into JSON.
    """

    def __init__(self, engine: E, *, encode: Callable[[Any], bytes] = msgspec.json.encode) -> None:
        if not isinstance(engine, Engine | AsyncEngine):
            raise InvalidInput(
                f"an outbox needs a SQLAlchemy engine, not a {type(engine).__name__}; "
                "make one with create_engine"
            )
        check_dialect(engine.dialect)
        self.engine: E = engine
        self._encode = encode
        self._names: set[str] = set()

    def __repr__(self) -> str:
        return f"Outbox({safe_name(self.engine)!r})"

    @overload
    def create_all(self: Outbox[Engine]) -> None: ...
    @overload
    def create_all(self: Outbox[AsyncEngine]) -> Awaitable[None]: ...
    def create_all(self) -> Awaitable[None] | None:
        """Create the tables that are not there yet; to be awaited on an AsyncEngine.

        Runs the SQL files of this package, so it may be called at every start. A SQLite file is
        set to WAL mode as well, so that staging and streaming do not wait for readers. A user of
        Postgres who may not create tables need not, where they exist. Raises DatabaseUnreachable or
        DatabaseRefused.
        """
        if isinstance(self.engine, AsyncEngine):
            return _create_async(self.engine)
        with translating_errors(self.engine):
            SCHEMA.create(self.engine)
        return None

    @overload
    def stage(
        self,
        conn: SyncConnection,
        stream: AnyStream,
        tag: str,
        value: Any,
        *,
        headers: GivenHeaders | None = None,
    ) -> None: ...
    @overload
    def stage(
        self,
        conn: AnyAsyncConnection,
        stream: AnyStream,
        tag: str,
        value: Any,
        *,
        headers: GivenHeaders | None = None,
    ) -> Awaitable[None]: ...
    def stage(
        self,
        conn: Any,
        stream: AnyStream,
        tag: str,
        value: Any,
        *,
        headers: GivenHeaders | None = None,
    ) -> Awaitable[None] | None:
        """Stage one message in the transaction of ``conn``; to be awaited on an async one.

        ``stream`` is its name, or a stream that was opened with a codec, which then encodes the
        value. It reaches the stream if and only if that transaction commits, after what the same
        transaction staged before it for that stream. ``headers`` go with it. Raises InvalidInput
        for what the log would not take, before the insert, and NotCreated when the tables are
        missing. One insert.
        """
        headers = Carried.beside(headers)
        stored = encode_headers(headers) if headers is not None else b""
        row: tuple[str, str, bytes] = self._row(stream, tag, value)
        return _write(conn, [(*row, stored) if stored else row])

    @overload
    def stage_many(
        self, conn: SyncConnection, stream: AnyStream, entries: Iterable[StagedEntry]
    ) -> None: ...
    @overload
    def stage_many(
        self, conn: AnyAsyncConnection, stream: AnyStream, entries: Iterable[StagedEntry]
    ) -> Awaitable[None]: ...
    def stage_many(
        self, conn: Any, stream: AnyStream, entries: Iterable[StagedEntry]
    ) -> Awaitable[None] | None:
        """Stage (tag, value) pairs in their order; all are checked before any is inserted.

        An entry may also be (tag, value, headers). One insert per thousand, or per 8 MB.
        """
        check_name(stream.name if isinstance(stream, Stream | AsyncStream) else stream, "stream")
        rows: list[tuple[AnyStream, str, Any]] = []
        headers: dict[int, Any] = {}
        try:
            for entry in entries:
                if isinstance(entry, str):
                    # A str of two characters would pass for a pair; so would a key of a dict.
                    raise TypeError
                if len(entry) == 2:
                    tag, value = entry
                else:
                    tag, value, headers[len(rows)] = entry
                rows.append((stream, tag, value))
        except (TypeError, ValueError):
            raise InvalidInput(
                "entries must be (tag, value) pairs or (tag, value, headers); of a dict, pass its "
                "items()"
            ) from None
        if Carried.context is not None:
            headers = {at: Carried.beside(headers.get(at)) for at in range(len(rows))}
        stored = {at: encode_headers(given) for at, given in headers.items()}
        checked: list[Any] = [self._row(*entry) for entry in rows]
        if any(stored.values()):
            checked = [
                (name, tag, value, stored.get(at, b""))
                for at, (name, tag, value) in enumerate(checked)
            ]
        return _write(conn, checked)

    def status(self) -> Status:
        """Return how much is staged, since when, and who streams it; blocks for a moment."""
        with open_database(self.engine) as database:
            return read_status(database)

    def batch_of(self, stream: str, offset: int) -> StreamedBatch | None:
        """Return the batch that brought a message to the log; blocks for a moment.

        None when it came another way, or when it is not among the newest 10,000 batches.
        """
        with open_database(self.engine) as database:
            return database.batch_of_offset(stream, offset)

    def find_row(self, row: int) -> StagedRow | StreamedBatch | None:
        """Return where a row is: in the outbox still, or in the log by which batch; else None.

        ``offset_of(row)`` of the batch is the offset of its message. Blocks for a moment.
        """
        with open_database(self.engine) as database:
            if (staged := database.staged_row(row)) is not None:
                return staged
            found = database.batches_of_row(row)
        return next((one for one in found if one.offset_of(row) is not None), None)

    def _row(self, stream: AnyStream, tag: str, value: Any) -> tuple[str, str, bytes]:
        if isinstance(stream, Stream | AsyncStream):
            value = value if stream.codec is None else stream.codec.encode(value)
            stream = stream.name
        if stream not in self._names:
            check_name(stream, "stream")
            if len(self._names) < _MANY_NAMES:
                self._names.add(stream)
        if type(value) is not bytes:
            value = self._bytes(value)
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidInput(
                f"a value may have {MAX_VALUE_BYTES} bytes, not {len(value)}; make it smaller"
            )
        # A character has at most four bytes, and none that is printable is a NUL.
        if type(tag) is not str or 4 * len(tag) > MAX_TAG_BYTES or not tag.isprintable():
            _check_tag(tag)
        return stream, tag, value

    def _bytes(self, value: Any) -> bytes:
        if isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(f"the value is not valid Unicode ({error.reason})") from None
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        try:
            found = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidInput(
                f"a {type(value).__name__} cannot be encoded ({error}); "
                "stage bytes, or pass the outbox an encode= that can"
            ) from error
        if not isinstance(found, bytes):
            raise InvalidInput(f"encode= must return bytes, not {type(found).__name__}")
        return found


def _check_tag(tag: Any) -> None:
    if not isinstance(tag, str):
        raise InvalidInput(f"a tag must be a str, not {type(tag).__name__}")
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"tag {tag!r} is not valid Unicode ({error.reason})") from None
    if size > MAX_TAG_BYTES:
        raise InvalidInput(f"a tag may have {MAX_TAG_BYTES} bytes, not {size}; make it smaller")
    if "\0" in tag:
        raise InvalidInput(f"tag {tag!r} contains a NUL, which SQL text cannot; leave it out")


def _write(conn: Any, rows: Sequence[Row]) -> Awaitable[None] | None:
    """Insert; raises NotCreated in place of what a driver raises about missing tables."""
    try:
        waiting = write_rows(conn, rows)
    except Exception as error:
        if is_missing_table(error):
            raise NotCreated(outbox_table.name) from error
        raise
    return None if waiting is None else _written(waiting)


async def _written(waiting: Awaitable[None]) -> None:
    try:
        await waiting
    except Exception as error:
        if is_missing_table(error):
            raise NotCreated(outbox_table.name) from error
        raise


async def _create_async(engine: AsyncEngine) -> None:
    with translating_errors(engine):
        await SCHEMA.create_async(engine)
