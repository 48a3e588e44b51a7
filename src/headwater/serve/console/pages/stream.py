"""Pages of a stream and of topics."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.inspecting import (
    StreamProfile,
    TimeBar,
    estimate,
    histogram,
    lag_at,
    stream_profile,
)
from headwater.log.types import GroupInfo, Searched, StreamInfo
from headwater.metrics.alarms import CONSUMER
from headwater.metrics.sweeps import RetentionForecast
from headwater.outbox.status import Checkpoint
from headwater.serve.api.reading import Source
from headwater.serve.api.routes import NDJSON
from headwater.serve.api.stores import find_row, traced
from headwater.serve.api.tails import ALIVE, HELLO
from headwater.serve.console.actions.action import cli_words
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.links import Place, consumer_link, group_link, query, stream_link
from headwater.serve.console.render import age, number
from headwater.serve.console.ruler import (
    OutsideReader,
    RulerPicture,
    draw,
    group_rulers,
    moment_of,
    registered_reader,
    spark_reads,
    steps_of,
    window_of,
)
from headwater.serve.console.values import shown_messages
from headwater.serve.http.messages import Refused, StreamedReply, path_part
from headwater.spark.queries.status import query_statuses
from headwater.store.many import together
from headwater.views import overview
from headwater.views.overview import StreamGroup
from headwater.views.traces import TraceStepView


@page("/streams", "streams.html", "Streams")
async def show_streams(call: PageCall) -> Context:
    """Show all streams, page by page."""
    names, part = call.part(call.visible(await call.hw.streams()))
    streams = await call.hw.store.run(overview.some_streams(names))
    groups: dict[str, list[GroupInfo]] = {}
    for row in await call.hw.store.run(overview.groups_of(streams)):
        groups.setdefault(row.stream, []).append(row.group)
    rates = {name: call.served.watched.rates.of(name) for name in names}
    return {"streams": streams, "groups": groups, "rates": rates, "part": part}


# So many groups that would miss messages are named.
_NAMED: Final = 3


def forecast_words(seen: RetentionForecast) -> str:
    """Say what would be evicted now, what waits for whom, and who would miss how much."""
    if not seen.due:
        return "nothing to evict now"
    at_least = "at least " if seen.more else ""
    kept = seen.due - seen.evicted
    waiting = (
        f"{at_least}{number(kept)} wait for {seen.held_by}, which needs {number(seen.held_next)}"
    )
    if not seen.evicted:
        return f"would evict nothing now; {waiting}"
    # What is held up is all that is not counted.
    first = "" if kept else at_least
    said = f"would evict {first}{number(seen.evicted)} now, passes {_passed(seen)}"
    return f"{said}; {waiting}" if kept else said


def _passed(seen: RetentionForecast) -> str:
    if not seen.passed:
        return "nobody"
    named = [f"{one.name} by {number(one.missed)}" for one in seen.passed[:_NAMED]]
    more = len(seen.passed) - len(named)
    return ", ".join(named) + (f" and {number(more)} more groups" if more else "")


# How many rows and cells a ruler has, and how many places of the index a page looks at.
_ROWS: Final = 40
_CELLS: Final = 250
_SAMPLE: Final = 128
_BARS: Final = 60


class StreamRuler(NamedTuple):
    """A ruler with what its page shows beside it.

    ``hidden`` rows are not drawn; ``times`` are offsets with their times, for whoever points at
    the picture; ``without`` says who could not be asked.
    """

    picture: RulerPicture
    hidden: int
    bars: list[TimeBar]
    times: list[tuple[int, int]]
    profile: StreamProfile
    groups: list[StreamGroup]
    without: str | None


async def ruler_of(call: PageCall, info: StreamInfo) -> StreamRuler:
    """Return the ruler of a stream: one call for each group, none for a message."""
    window = window_of(info, call.number("first"), call.number("last"))
    rows = await call.hw.store.run(overview.groups_of([info]))
    rulers = await group_rulers(call.hw, info.name, rows[:_ROWS], window, _CELLS)
    readers, without = await outside_readers(call, info)
    now_ms = int(time.time() * 1000)
    picture = draw(info, window, rulers, readers[:_ROWS], now_ms)
    profile = await call.hw.store.run(stream_profile(info.name, window.first, window.last, _SAMPLE))
    return StreamRuler(
        picture=picture,
        hidden=max(len(rows) - _ROWS, 0) + max(len(readers) - _ROWS, 0),
        bars=histogram(profile, window.first, window.last, _BARS),
        times=profile.points(window.first, window.last)[:: max(len(profile.sample) // 64, 1)],
        profile=profile,
        groups=rows,
        without=without,
    )


async def outside_readers(
    call: PageCall, info: StreamInfo
) -> tuple[list[OutsideReader], str | None]:
    """Return who reads a stream from outside the log, and who could not be asked."""
    consumers, without = await _consumers(call, info.name)
    readers = [
        registered_reader(name, needed, info.reader_lag_ms[name])
        for name, needed in sorted(info.readers.items())
        if name.removeprefix(CONSUMER) not in consumers
    ]
    lags = await call.hw.store.run(
        together(lag_at(info.name, one.next_offset) for one in consumers.values())
    )
    readers += [
        OutsideReader(
            "SQL",
            name,
            one.next_offset,
            f"last progress {age(one.idle_ms)} ago",
            lag.lag_ms,
            consumer_link(name),
        )
        for (name, one), lag in zip(consumers.items(), lags, strict=True)
    ]
    for spark_query in await call.hw.store.run(query_statuses()):
        readers += spark_reads(spark_query, info.name)
    return readers, without


async def _consumers(call: PageCall, stream: str) -> tuple[dict[str, Checkpoint], str | None]:
    """Return where the SQL consumers of a stream are, in the order of their names."""
    if call.served.database is None:
        return {}, None
    try:
        status = await call.served.database.status()
    except HeadwaterError as error:
        return {}, f"SQL consumers are not shown as their database says: {error}"
    own = [one for one in status.checkpoints if one.stream == stream]
    return {one.consumer: one for one in sorted(own, key=lambda one: one.consumer)}, None


# How many messages a page shows, and what a search may take before it asks whether to go on.
_MESSAGES: Final = 50
_SEARCH_MESSAGES: Final = 200_000
_SEARCH_MS: Final = 300
_FOUND: Final = 50
_TAG: Final = "tag:"
# No offset has more digits.
_DIGITS: Final = 16


async def opened(call: PageCall) -> StreamInfo:
    """Return where the stream of a page stands; raises Refused for one that is not there."""
    info = await call.hw.stream(call.name).info()
    if not info.exists:
        raise Refused(404, f"there is no stream {call.name!r}; it is made by the first write")
    return info


async def frame(call: PageCall, info: StreamInfo, tab: str) -> Context:
    """Return what every page of a stream shows: where it stands, and its other pages."""
    may_write, may_admin = call.may(Scope.WRITE, info.name), call.may(Scope.ADMIN, info.name)
    tabs = [("Messages", ""), ("Live tail", "/tail"), ("Groups", "/groups")]
    tabs += [("Storage", "/storage"), ("Settings", "/settings")]
    tabs += [("Write", "/write")] if may_write else []
    tabs += [("Replay", "/replay")]
    groups = [
        row.group for row in call.served.watched.sweeps.latest.groups if row.stream == info.name
    ]
    forecast = await call.served.watched.forecasts.of(info, groups)
    return {
        "info": info,
        "tabs": tabs,
        "tab": tab,
        "rate": call.served.watched.rates.of(info.name),
        "forecast": forecast and forecast_words(forecast),
        "may_admin": may_admin,
        "may_write": may_write,
    }


@page("/streams/{stream}", "stream.html", "Streams")
async def show_stream(call: PageCall) -> Context:
    """Show the ruler of a stream, its histogram, and messages from a place or by a filter."""
    info = await opened(call)
    ruler = await ruler_of(call, info)
    shown = (await frame(call, info, "Messages")) | {"stream_ruler": ruler, "page": _MESSAGES}
    if any(call.query.get(field) for field in ("tag", "text", "where")):
        found = await _search(call)
        rows = [(message.offset, message) for message in found.messages]
        return shown | {"at": info.first, "messages": rows, "found": found, "missed": None}
    at, missed = await _place(call, info)
    rows_at: list[tuple[int, Any]] = []
    if info.length:
        last = min(at + _MESSAGES - 1, info.last)
        rows_at = list(await shown_messages(call.hw.stream(info.name), at, last))
    return shown | {"at": at, "messages": rows_at, "found": None, "missed": missed}


async def _search(call: PageCall) -> Searched[Any]:
    """Search by the filter of a page, for a moment."""
    return await call.hw.stream(call.name).search(
        tag=call.query.get("tag") or None,
        text=call.query.get("text") or None,
        where=call.query.get("where") or None,
        start=call.number("from"),
        newest_first=call.query.get("order") != "oldest",
        count=_FOUND,
        max_messages=_SEARCH_MESSAGES,
        max_ms=_SEARCH_MS,
        max_bytes=LIST_BYTES,
    )


async def _place(call: PageCall, info: StreamInfo) -> tuple[int, Searched[Any] | None]:
    """Return the offset that is asked for: a number, ±n, first, last, a time, or a tag's newest.

    With it, a search for a tag that has found nothing.
    """
    given = call.query.get("at", "").strip()
    word = given.replace(",", "")
    newest = max(info.last - _MESSAGES + 1, info.first)
    if not word or word == "last":
        return newest, None
    if word == "first":
        return info.first, None
    if word.isdecimal() and len(word) <= _DIGITS:
        return _within(info, int(word)), None
    if (steps := steps_of(word)) is not None:
        return _within(info, (call.number("base") or newest) + steps), None
    if given.startswith(_TAG):
        found = await call.hw.stream(info.name).search(
            tag=given.removeprefix(_TAG).strip(),
            newest_first=True,
            count=1,
            max_messages=_SEARCH_MESSAGES,
            max_ms=_SEARCH_MS,
        )
        return (found.messages[0].offset, None) if found.messages else (newest, found)
    moment = moment_of(given)
    if moment is None:
        raise InvalidInput(
            f"{given!r} is no place: give an offset, +1000 or -1000, first, last, a span before "
            "now like 2h, a time like 2026-11-17T14:00Z, or tag:ride-7"
        )
    return _within(info, await call.hw.stream(info.name).offset_at(moment)), None


def _within(info: StreamInfo, offset: int) -> int:
    return max(min(offset, info.last), info.first)


@page("/streams/{stream}/groups", "stream/groups.html", "Streams")
async def show_stream_groups(call: PageCall) -> Context:
    """Show the groups and readers of a stream, on its ruler and in a table."""
    info = await opened(call)
    return (await frame(call, info, "Groups")) | {"stream_ruler": await ruler_of(call, info)}


@page("/streams/{stream}/tail", "stream/tail.html", "Streams")
async def show_stream_tail(call: PageCall) -> Context:
    """Show messages as they arrive; scripts fill it."""
    info = await opened(call)
    stream = call.hw.stream(info.name)
    rows = await shown_messages(stream, max(info.last - 9, info.first), info.last)
    newest = [message for _, message in rows if message is not None]
    return (await frame(call, info, "Live tail")) | {"messages": newest[::-1]}


@page("/streams/{stream}/write", "stream/write.html", "Streams")
async def show_stream_write(call: PageCall) -> Context:
    """Show a form that writes a message."""
    return await frame(call, await opened(call), "Write")


@page("/streams/{stream}/settings", "stream/settings.html", "Streams")
async def show_stream_settings(call: PageCall) -> Context:
    """Show how much of a stream is kept, and who holds that up."""
    return await frame(call, await opened(call), "Settings")


@page("/streams/{stream}/storage", "stream/storage.html", "Streams")
async def show_stream_storage(call: PageCall) -> Context:
    """Show how a stream lies in the store: nodes, holes, bytes, and what compaction would save."""
    info = await opened(call)
    profile = await call.hw.store.run(stream_profile(info.name, 1, info.last))
    shown = (await frame(call, info, "Storage")) | {"profile": profile, "estimate": None}
    if call.query.get("estimate"):
        shown["estimate"] = await call.hw.store.run(estimate(info.name, _SEARCH_MS))
    return shown


@page("/streams/{stream}/replay", "stream/replay.html", "Streams")
async def show_stream_replay(call: PageCall) -> Context:
    """Show the replays of a stream, a form that begins one, and how a range is exported."""
    info = await opened(call)
    first = call.number("first", max(info.first, 1)) or 1
    last = call.number("last", info.last) or info.last
    return (await frame(call, info, "Replay")) | {
        "first": first,
        "last": last,
        "replays": await call.served.jobs.replays.known(call.grant, info.name),
        "export": _reading(call, first, max(last - first + 1, 1), lines=True),
    }


# A browser cannot show a stream of a hundred thousand messages a second, and must not be sent it.
# So this tail reads a few times a second and, where more came than a screen holds, goes on with
# the newest; the offsets that it left out are named, and can be read. The tail of the API leaves
# out nothing.
# A browser is sent so many messages at once at most, and so many times a second.
_SHOWN: Final = 100
_PAUSE_S: Final = 0.5
_NO_STORE: Final = b"Cache-Control: no-store\r\n"


@page("/streams/{stream}/tail/events")
async def follow_stream(call: PageCall) -> StreamedReply:
    """Send messages as they are written, and what was left out, as server-sent events."""
    info = await opened(call)
    seen = (call.request.headers or {}).get(b"last-event-id", b"")
    known = seen.isdigit() and len(seen) <= _DIGITS
    at = int(seen) + 1 if known else call.number("from", info.last + 1) or 1
    pieces = _events(call, max(min(at, info.last + 1), 1))
    return StreamedReply(200, pieces, "text/event-stream", _NO_STORE, endless=True)


async def _events(call: PageCall, at: int) -> AsyncGenerator[bytes, None]:
    source, tails = Source(call.hw, call.name), call.served.tails
    yield HELLO
    while call.served.tokens.still(call.grant):
        (passage,) = await source.passages([at], _SHOWN)
        if passage.last - passage.next >= _SHOWN:
            first, at = at, passage.last - _SHOWN + 1
            facts = msgspec.json.encode({"first": first, "last": at - 1, "why": "too many to show"})
            yield b"event: skipped\nid: %d\ndata: %b\n\n" % (at - 1, facts)
            continue
        if passage.next > at:
            yield source.events_of([passage], [at])
            at = passage.next
            await asyncio.sleep(_PAUSE_S)
            continue
        await tails.news(source, [at], lambda: call.served.tokens.still(call.grant))
        yield ALIVE


# Words, and how something is spelled in what they name.
Forms: TypeAlias = list[tuple[str, str]]

_WORDS: Final = {"consumer": "SQL consumer", "query": "Spark query"}


@page("/streams/{stream}/messages/{offset}", "message.html", "Streams", whole=True)
async def show_message(call: PageCall) -> Context:
    """Show one message of a stream, and what became of it everywhere."""
    stream, given = call.names
    info = await opened(call)
    offset = _offset(given)
    path = f"{path_part(stream)}/messages/{offset}"
    trace, _, message = await traced(call.served, stream, offset)
    return (await frame(call, info, "Messages")) | {
        "offset": offset,
        "message": message,
        "row": trace.row,
        "life": [(one, _where(one), _link(stream, one)) for one in trace.steps],
        "hidden": trace.groups_left_out,
        "forms": _reading(call, offset, 1),
        # With the lasting address of the page.
        "trace_forms": [
            ("CLI", cli_words("stream", "trace", stream, offset)),
            ("curl", shlex.join(["curl", f"{call.address}/v1/streams/{path}/trace"])),
            ("Link", f"{call.address}/console/streams/{path}"),
        ],
    }


@page("/outbox/rows/{row}", "shared/row.html", "Outbox", whole=True)
async def show_row(call: PageCall) -> Context:
    """Show the message of a row of the outbox, or where else the row is."""
    row, served = _offset(call.name), call.served.database is not None
    found = await find_row(call.served, row) if served else None
    if found is not None and found.offset is not None:
        return {"see": f"{stream_link(found.stream)}/messages/{found.offset}"}
    return {"row": row, "found": found, "served": served}


def _offset(given: str) -> int:
    try:
        offset = int(given.replace(",", ""))
    except ValueError:
        offset = 0
    if not 1 <= offset < 2**53:
        raise InvalidInput(f"{given!r} is no offset; give a whole number from 1 on")
    return offset


def _where(step: TraceStepView) -> str:
    return f"{_WORDS.get(step.kind, step.kind)} {step.name}".strip()


def _link(stream: str, step: TraceStepView) -> str | None:
    if step.kind == "group":
        if step.state == "dead":
            return f"/dead?{query(place=Place(stream, step.name).key)}"
        return group_link(stream, step.name)
    if step.kind == "consumer":
        return consumer_link(step.name)
    return {"outbox": "/outbox", "batch": "/outbox", "query": "/spark"}.get(step.kind)


def _reading(call: PageCall, first: int, count: int, *, lines: bool = False) -> Forms:
    """Return how messages of the stream of a page are read elsewhere, perhaps as lines of JSON."""
    path = f"{call.address}/v1/streams/{path_part(call.name)}/messages?from={first}&count={count}"
    words = ("stream", "read", call.name, "--offset", first, "--count", count)
    return [
        ("CLI", cli_words(*words, *(["--json"] if lines else []))),
        ("curl", shlex.join(["curl", *(["-H", f"accept: {NDJSON}"] if lines else []), path])),
        ("Python", f"hw.stream({call.name!r}).read({first}, {count})" + ("" if lines else "[0]")),
    ]


@page("/topics", "topics.html", "Topics")
async def show_topics(call: PageCall) -> Context:
    """Show all topics, page by page."""
    names, part = call.part(call.visible(await call.hw.topics()))
    found = await call.hw.store.run(overview.some_topics(names))
    return {"topics": found, "part": part}


@page("/topics/{topic}", "topic.html", "Topics")
async def show_topic(call: PageCall) -> Context:
    """Show one topic: each partition, and each group over all of them."""
    found = await call.hw.store.run(overview.some_topics([call.name]))
    if not found:
        raise Refused(
            404, f"there is no topic {call.name!r}; opening it with its partitions makes it"
        )
    partitions = found[0].partitions
    groups: dict[str, dict[str, GroupInfo]] = {}
    for row in await call.hw.store.run(overview.groups_of(partitions)):
        groups.setdefault(row.group.name, {})[row.stream] = row.group
    longest = max((stream.length for stream in partitions), default=0)
    return {
        "topic": call.name,
        "partitions": partitions,
        "groups": sorted(groups.items()),
        "longest": max(longest, 1),
    }
