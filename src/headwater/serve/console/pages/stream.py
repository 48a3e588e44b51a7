"""One stream: its messages, groups, storage and settings, and forms to write to it."""

from __future__ import annotations

import shlex
from typing import Any, Final

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.inspecting import estimate, stream_profile
from headwater.log.types import Searched, StreamInfo
from headwater.serve.api.routes import NDJSON
from headwater.serve.console.actions.action import cli_words
from headwater.serve.console.bounded_reads import shown_messages
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.pages.stream_forecast import forecast_words
from headwater.serve.console.pages.stream_ruler import ruler_of
from headwater.serve.console.positions import moment_of, steps_of
from headwater.serve.http.messages import Refused
from headwater.serve.http.targets import path_part

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
    call.check(call.name)
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


async def show_stream_groups(call: PageCall) -> Context:
    """Show the groups and readers of a stream, on its ruler and in a table."""
    info = await opened(call)
    return (await frame(call, info, "Groups")) | {"stream_ruler": await ruler_of(call, info)}


async def show_stream_tail(call: PageCall) -> Context:
    """Show messages as they arrive; scripts fill it."""
    info = await opened(call)
    stream = call.hw.stream(info.name)
    rows = await shown_messages(stream, max(info.last - 9, info.first), info.last)
    newest = [message for _, message in rows if message is not None]
    return (await frame(call, info, "Live tail")) | {"messages": newest[::-1]}


async def show_stream_write(call: PageCall) -> Context:
    """Show a form that writes a message."""
    return await frame(call, await opened(call), "Write")


async def show_stream_settings(call: PageCall) -> Context:
    """Show how much of a stream is kept, and who holds that up."""
    return await frame(call, await opened(call), "Settings")


async def show_stream_storage(call: PageCall) -> Context:
    """Show how a stream lies in the store: nodes, holes, bytes, and what compaction would save."""
    info = await opened(call)
    profile = await call.hw.store.run(stream_profile(info.name, 1, info.last))
    shown = (await frame(call, info, "Storage")) | {"profile": profile, "estimate": None}
    if call.query.get("estimate"):
        shown["estimate"] = await call.hw.store.run(estimate(info.name, _SEARCH_MS))
    return shown


async def show_stream_replay(call: PageCall) -> Context:
    """Show the replays of a stream, a form that begins one, and how a range is exported."""
    info = await opened(call)
    first = call.number("first", max(info.first, 1)) or 1
    last = call.number("last", info.last) or info.last
    path = f"{call.address}/v1/streams/{path_part(info.name)}/messages?from={first}"
    count = max(last - first + 1, 1)
    ask = f"accept: {NDJSON}"
    read = ("stream", "read", info.name, "--offset", first, "--count", count, "--json")
    return (await frame(call, info, "Replay")) | {
        "first": first,
        "last": last,
        "replays": await call.served.jobs.replays.known(call.grant, info.name),
        "export": [
            ("CLI", cli_words(*read)),
            ("curl", shlex.join(["curl", "-H", ask, f"{path}&count={count}"])),
            ("Python", f"hw.stream({info.name!r}).read({first}, {count})"),
        ],
    }
