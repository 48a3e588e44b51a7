"""One search over everything in the store: by a part of a name, or a message by its place.

Names come from the registries and from the sample that everybody shares, so that a search costs the
same few calls among ten streams and among ten thousand.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.log.handles import StreamHandle
from headwater.log.keys import list_topics
from headwater.log.reading import info as stream_info
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.links import (
    channel_link,
    consumer_link,
    group_link,
    job_link,
    queue_link,
    stream_link,
    topic_link,
)
from headwater.serve.console.pages.overview import sampled
from headwater.spark.queries.status import query_statuses
from headwater.timed.operating import list_infos

log = logging.getLogger("headwater.serve.console")

# So many of a kind are shown, the best first.
_SHOWN: Final = 25
_MOST_CHARS: Final = 200
_ROW: Final = re.compile(r"(?:row|outbox)[ #:]*([\d,]{1,20})", re.IGNORECASE)
_PLACE: Final = re.compile(r"(.+)@([\d,]{1,20})")


class Hit(NamedTuple):
    """Something that was found: its name, what it belongs to, and its page."""

    name: str
    link: str
    where: str = ""


class FoundKind(NamedTuple):
    """What was found of one kind, and how many more there are."""

    word: str
    hits: list[Hit]
    more: int


@page("/search", "search.html", "Search")
async def show_search(call: PageCall) -> Context:
    """Show everything whose name has a text in it; ``stream@offset`` goes to the message."""
    asked = call.query.get("q", "").strip()[:_MOST_CHARS]
    if not asked:
        return {"sought": asked, "found": [], "outbox": call.served.database is not None}
    if (row := _ROW.fullmatch(asked)) is not None and call.served.database is not None:
        return {"see": f"/outbox/rows/{row[1].replace(',', '')}"}
    if (link := await _place(call, asked)) is not None:
        return {"see": link}
    found, exact = [], []
    for word, hits in await _everything(call):
        ranked = _ranked(asked.lower(), hits)
        exact += [hit for hit in ranked if hit.name == asked]
        if ranked:
            found.append(FoundKind(word, ranked[:_SHOWN], max(len(ranked) - _SHOWN, 0)))
    # What has the very name is meant, unless several have it; whoever types gets a list.
    if len(exact) == 1 and "list" not in call.query:
        return {"see": exact[0].link}
    return {"sought": asked, "found": found}


async def _place(call: PageCall, asked: str) -> str | None:
    """Return the page of a message that was asked for as ``stream@offset``, if there is one."""
    match = _PLACE.fullmatch(asked)
    if match is None or not call.grant.allows(Scope.READ, match[1]):
        return None
    offset = int(match[2].replace(",", "") or 0)
    try:
        info = await call.hw.store.run(stream_info(StreamHandle(match[1], set())))
    except HeadwaterError:
        return None  # what is no name is looked for like any other text
    return f"{stream_link(match[1])}/messages/{offset}" if 1 <= offset <= info.last else None


async def _everything(call: PageCall) -> list[tuple[str, list[Hit]]]:
    """Return what the client may see, kind by kind."""
    sample, hw = await sampled(call), call.hw

    def named(names: Iterable[str], link: Callable[[str], str]) -> list[Hit]:
        return [Hit(name, link(name)) for name in names if call.grant.allows(Scope.READ, name)]

    groups = [(row.group.name, row.stream) for row in sample.groups]
    readers = [(name, one.name) for one in sample.streams for name in sorted(one.readers)]
    found = [
        ("Streams", named(await hw.streams(), stream_link)),
        ("Topics", named(await hw.store.run(list_topics()), topic_link)),
        ("Groups", [Hit(name, group_link(stream, name), stream) for name, stream in groups]),
        ("Queues", named(await hw.queues(), queue_link)),
        ("Dirty lists", [Hit(one.name, channel_link(one.name)) for one in sample.channels]),
        ("Readers", [Hit(name, stream_link(stream), stream) for name, stream in readers]),
    ]
    return found + (await _outside(call) if call.grant.everywhere(Scope.READ) else [])


async def _outside(call: PageCall) -> list[tuple[str, list[Hit]]]:
    """Return what concerns the whole store."""
    run, consumers, instances = call.hw.store.run, set[tuple[str, str]](), []
    if call.served.database is not None:
        try:
            status = await call.served.database.status()
            consumers = {(one.consumer, one.stream) for one in status.checkpoints}
        except HeadwaterError as error:
            log.warning("a search is without consumers: %s", error)
    if call.served.farm is not None:
        instances = await call.served.farm.status()
    notes = [one.note for one in await call.served.watched.facts.processes()]
    parts = [(note.host, f"{note.name} {part.name}") for note in notes for part in note.parts]
    processes = parts + [(note.host, note.name) for note in notes]
    return [
        ("SQL consumers", [Hit(name, consumer_link(name), on) for name, on in sorted(consumers)]),
        (
            "Spark queries",
            [Hit(one.name or one.query, "/spark") for one in await run(query_statuses())],
        ),
        ("Timed jobs", [Hit(one.name, job_link(one.name)) for one in await run(list_infos())]),
        ("Timelines", [Hit(one.instance, "/timelines") for one in instances]),
        ("Processes", [Hit(name.strip(), "/processes", host) for host, name in processes]),
    ]


def _ranked(asked: str, hits: Iterable[Hit]) -> list[Hit]:
    """Return what matches: the same name first, then names that begin so, then the others."""
    found = []
    for hit in hits:
        name = hit.name.lower()
        if asked in name:
            found.append((0 if name == asked else 1 if name.startswith(asked) else 2, hit))
    return [hit for _, hit in sorted(found)]
