"""The life of a message: outbox row, batch, offset, every group and reader, Spark, archive.

What is looked up in the store is one operation, for either client; what a database and an archive
know is asked by the caller that has them. Each step says what is not known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from headwater.errors import HeadwaterError
from headwater.kernel.failures import LastFailure, read_failure
from headwater.kernel.headers import OUTBOX_ID
from headwater.log import reading
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import GroupRuler, StreamProfile, group_ruler, stream_profile
from headwater.log.types import GroupInfo, Message, StreamInfo
from headwater.spark.queries.status import QueryStatus, query_statuses
from headwater.store.call import Call, Operation
from headwater.store.many import together
from headwater.store.presence import ARCHIVES, all_notes
from headwater.views.overview import groups_of, life_in_group
from headwater.views.record import View

if TYPE_CHECKING:
    # The extra `sql` brings what they need, and a server does without.
    from headwater.outbox.batches import StreamedBatch

# So many groups are asked.
MOST_GROUPS: Final = 100
_TRACE: Final = "traceparent"
_CONSUMER: Final = "consumer:"
_ARCHIVE: Final = "archive:"

StepKind: TypeAlias = Literal[
    "outbox", "batch", "trace", "log", "node", "group", "consumer", "query", "reader", "archive"
]


class TraceStepView(View, frozen=True, kw_only=True):
    """One station of a message: where, what happened to it there, and when, if that is known.

    ``state`` is done, new, due, dead, missed, before (the group began behind it), passed (a seek
    passed over it), unknown, or pending-N for attempt N, 3 and more.
    """

    kind: StepKind
    name: str = ""
    state: str
    text: str
    time_ms: int | None = None


class TraceView(View, frozen=True, kw_only=True):
    """The life of a message, in the order in which it goes; ``row`` is that of its outbox."""

    stream: str
    offset: int
    tag: str | None
    time_ms: int | None
    row: int | None
    steps: list[TraceStepView]
    groups_left_out: int = 0


class OutboxFacts(NamedTuple):
    """What a database says of a message; ``trouble`` is why it could not be asked.

    ``consumers`` are next offsets of SQL consumers, and how long ago each moved.
    """

    batch: StreamedBatch | None = None
    consumers: Mapping[str, tuple[int, int]] = {}
    trouble: str | None = None


class TraceFacts(NamedTuple):
    """What the store knows of a message; ``places`` are those of archives, by their readers."""

    info: StreamInfo
    profile: StreamProfile
    groups: list[tuple[GroupInfo, GroupRuler, LastFailure | None]]
    left_out: int
    queries: list[QueryStatus]
    places: dict[str, str]


def look_at_life(stream: str, offset: int) -> Operation[TraceFacts]:
    """Return what the store knows of a message: a few calls, and two for each group."""
    info = yield from reading.info(StreamHandle(stream, set()))
    profile = yield from stream_profile(stream, offset, offset, 1)
    rows = yield from groups_of([info])
    handles = [
        GroupHandle(StreamHandle(stream, set()), row.group.name, "trace")
        for row in rows[:MOST_GROUPS]
    ]
    rulers = yield from together(group_ruler(one, offset, offset, 1) for one in handles)
    failures = yield from together(_failure(one, offset) for one in handles)
    groups = [
        (row.group, ruler, failure)
        for row, ruler, failure in zip(rows, rulers, failures, strict=False)
        if ruler is not None
    ]
    queries = yield from query_statuses()
    places = {}
    if any(name.startswith(_ARCHIVE) for name in info.readers):
        noted = yield from all_notes(ARCHIVES)
        places = {name: note.text.decode("utf-8", "replace") for name, note in noted.items()}
    left_out = max(len(rows) - MOST_GROUPS, 0)
    return TraceFacts(info, profile, groups, left_out, queries, places)


def _failure(handle: GroupHandle, offset: int) -> Operation[LastFailure | None]:
    """Return why a message failed in a group for the last time; None when that is not known."""
    call = Call("hw_group_causes", handle.key, (handle.name, offset, offset), read_only=True)
    for text in (yield call):
        return read_failure(text.partition(b":")[2])
    return None


def archive_files(facts: TraceFacts, offset: int) -> dict[str, str]:
    """Return in which file of each archive an offset is, or why that is not known; blocks."""
    found = {}
    for reader, needed in facts.info.readers.items():
        if reader.startswith(_ARCHIVE) and offset < needed and reader in facts.places:
            found[reader] = _file(facts.places[reader], facts.info.name, offset)
    return found


def _file(place: str, stream: str, offset: int) -> str:
    from headwater.spark.archives.table import Archive

    try:
        contents = Archive(place, stream).load()
    except (HeadwaterError, OSError, ValueError) as error:
        return f"the archive at {place} cannot be read from here: {error}"
    if contents is None:
        return f"there is no archive at {place} on this machine"
    if contents.gaps_between(offset, offset):
        return f"it was evicted before it could be archived, says its table at {place}"
    files = [file for file in contents.between(offset, offset) if file.first <= offset]
    if not files:
        return f"it is in no file at {place}: it was removed by compaction before"
    return f"{files[0].path}, offsets {files[0].first:,} - {files[0].last:,}, at {place}"


def trace_of(
    facts: TraceFacts,
    message: Message[Any] | None,
    offset: int,
    outbox: OutboxFacts | None = None,
    files: Mapping[str, str] | None = None,
) -> TraceView:
    """Return the life of a message; ``outbox`` is None where no database is at hand."""
    now_ms = int(time.time() * 1000)
    row, steps = _staged(message, offset, outbox)
    steps += _written(facts, message, offset)
    for group, ruler, failure in facts.groups:
        state, text, time_ms = life_in_group(ruler, failure, offset, now_ms)
        steps.append(_step("group", state, text, group.name, time_ms))
    steps += _outside(facts, offset, outbox, files or {})
    return TraceView(
        stream=facts.info.name,
        offset=offset,
        tag=None if message is None else message.tag,
        time_ms=None if message is None else message.time_ms,
        row=row,
        steps=steps,
        groups_left_out=facts.left_out,
    )


def _step(
    kind: StepKind, state: str, text: str, name: str = "", time_ms: int | None = None
) -> TraceStepView:
    return TraceStepView(kind=kind, name=name, state=state, text=text, time_ms=time_ms)


def _staged(
    message: Message[Any] | None, offset: int, outbox: OutboxFacts | None
) -> tuple[int | None, list[TraceStepView]]:
    """Return the row of the outbox that a message comes from, and how it came."""
    batch = None if outbox is None else outbox.batch
    header = None if message is None else message.headers.get(OUTBOX_ID)
    # Whoever wrote the message chose what its headers say.
    row = int(header) if header is not None and header.isdigit() and len(header) <= 18 else None
    if row is None and batch is not None:
        row = batch.row_of(offset)
    if batch is None:
        if row is None:
            return None, [_step("outbox", "unknown", _without_row(outbox))]
        return row, [_step("outbox", "done", f"row {row:,}; {_without_batch(outbox)}")]
    which = f"one of the rows {batch.first_id:,} - {batch.last_id:,}" if row is None else None
    first, last = batch.staged_first_ms, batch.staged_last_ms
    spread = "" if first is None or last is None or last == first else f", within {last - first} ms"
    text = f"{which or f'row {row:,}'}; its batch was staged at this time{spread}"
    claimed = f"batch {batch.batch:,} of {batch.producer}, offsets {batch.first_offset:,} - "
    claimed += f"{batch.last_offset:,}; claimed at this time, so its rows were committed before"
    return row, [
        _step("outbox", "done", text, time_ms=first),
        _step("batch", "done", claimed, time_ms=batch.claimed_ms),
    ]


def _without_row(outbox: OutboxFacts | None) -> str:
    if outbox is None:
        return "the message carries no id of a row; no database is at hand to look it up (--db)"
    if outbox.trouble is not None:
        return f"the database could not be asked: {outbox.trouble}"
    return "it came another way, or before the newest 10,000 batches"


def _without_batch(outbox: OutboxFacts | None) -> str:
    if outbox is None:
        return "no database is at hand to look up its batch (--db)"
    if outbox.trouble is not None:
        return f"its batch is not known: {outbox.trouble}"
    return "its batch is not among the newest 10,000"


def _written(facts: TraceFacts, message: Message[Any] | None, offset: int) -> list[TraceStepView]:
    """Return where a message is in the log."""
    if message is None:
        why = "evicted" if offset < facts.info.first else "removed by compaction"
        return [_step("log", "missed", f"offset {offset:,} has no message any more: {why}")]
    steps = []
    if _TRACE in message.headers:
        text = message.headers[_TRACE].decode("ascii", "replace")
        steps.append(_step("trace", "done", text))
    steps.append(_step("log", "done", f"offset {offset:,}", time_ms=message.time_ms))
    if facts.profile.sample:
        node = facts.profile.sample[0]
        heat = "cold" if node.last <= facts.profile.cold else "hot"
        text = f"in the {heat} node {node.base:,} - {node.last:,}: {node.messages:,} messages, "
        steps.append(_step("node", "done", text + f"{node.bytes:,} B"))
    else:
        steps.append(_step("node", "new", "in the tail, not sealed yet"))
    return steps


def _outside(
    facts: TraceFacts, offset: int, outbox: OutboxFacts | None, files: Mapping[str, str]
) -> list[TraceStepView]:
    """Return what happened to a message at readers outside the log."""
    consumers = {} if outbox is None else outbox.consumers
    steps, archived = [], False
    for name, needed in sorted(facts.info.readers.items()):
        if name.startswith(_ARCHIVE):
            archived = True
            text = files.get(name, "archived; where the archive is is not noted")
            short = name.removeprefix(_ARCHIVE)
            steps.append(_read("archive", short, offset, needed, text))
        elif name.startswith(_CONSUMER):
            if (short := name.removeprefix(_CONSUMER)) not in consumers:
                text = f"done: it needs {needed:,} next, as it noted"
                steps.append(_read("consumer", short, offset, needed, text))
        else:
            steps.append(_read("reader", name, offset, needed, f"done: it needs {needed:,} next"))
    for name, (needed, idle_ms) in sorted(consumers.items()):
        text = f"done: it needs {needed:,} next; moved {idle_ms / 1000:,.0f} s ago"
        steps.append(_read("consumer", name, offset, needed, text))
    for query in facts.queries:
        for read in query.reads:
            if read.stream == facts.info.name:
                text = f"done, at the latest in epoch {query.epoch:,}; it is {query.state}"
                shown = query.name or query.query[:8]
                steps.append(_read("query", shown, offset, read.next, text))
    if not archived:
        steps.append(_step("archive", "unknown", "no archiver is registered for this stream"))
    return steps


def _read(kind: StepKind, name: str, offset: int, needed: int, text: str) -> TraceStepView:
    if offset >= needed:
        return _step(kind, "new", f"not yet: it needs {needed:,} next", name)
    return _step(kind, "done", text, name)
