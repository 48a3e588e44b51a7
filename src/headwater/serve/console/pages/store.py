"""The store as a whole: audit, processes, doctor; and what feeds and reads it from outside."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import msgspec

from headwater.outbox.status import Status
from headwater.serve.audit import AUDIT
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.charts import outbox_charts
from headwater.serve.console.links import query
from headwater.serve.console.values import each_message
from headwater.spark.queries.status import query_statuses
from headwater.store.doctor import examine
from headwater.timed.operating import history, info, list_infos

_NOTES: Final = 100
# So many are looked at for those that match, and by which of their fields.
_SEARCHED: Final = 2000
_AUDITED: Final = ("who", "what", "path", "outcome")
_COLUMNS: Final = (*_AUDITED, "method", "offset", "time_ms")
# So many characters of the rest of a note are shown.
_DETAILS: Final = 16 * 1024


@page("/audit", "audit.html", "Audit")
async def show_audit(call: PageCall) -> Context:
    """Show what was changed by whom, the newest first."""
    call.check(AUDIT)
    stream = call.hw.stream(AUDIT)
    info = await stream.info()
    end = min(call.number("before", info.last + 1) or info.last + 1, info.last + 1)
    searched = _SEARCHED if any(call.query.get(name) for name in _AUDITED) else _NOTES
    start = max(end - searched, info.first)
    notes = []
    wanted = {name: call.query.get(name, "").strip().lower() for name in _AUDITED}
    async for message in each_message(stream, start, end - 1):
        try:
            note = msgspec.json.decode(message.value)
        except msgspec.DecodeError:
            continue
        if all(word in str(note.get(name, "")).lower() for name, word in wanted.items()):
            notes.append(_shown({"offset": message.offset, "time_ms": message.time_ms, **note}))
    kept = {name: word for name, word in wanted.items() if word}
    older = query(**kept, before=start) if start > info.first else None
    return {
        "notes": notes[::-1],
        "older": older,
        "looked": max(end - start, 0),
        "filtered": bool(kept),
    }


def _shown(note: dict[str, Any]) -> dict[str, Any]:
    """Return what a page shows of a note: it may name thousands of messages, and is cut then."""
    spelled = json.dumps(note, indent=2, sort_keys=True)
    rest = len(spelled) - _DETAILS
    details = spelled if rest <= 0 else f"{spelled[:_DETAILS]}\n… {rest:,} more characters"
    return {name: note.get(name, "") for name in _COLUMNS} | {"details": details}


@page("/processes", "processes.html", "Processes", whole=True)
async def show_processes(call: PageCall) -> Context:
    """Show the processes that report themselves: servers, and applications with their parts."""
    return {"processes": await call.served.watched.facts.processes()}


@page("/store", "store.html", "Store", whole=True)
async def show_store(call: PageCall) -> Context:
    """Show what the store promises, by its settings and its state."""
    return {"report": await asyncio.to_thread(examine, call.served.store_url)}


@page("/outbox", "outbox.html", "Outbox", whole=True)
async def show_outbox(call: PageCall) -> Context:
    """Show what is staged in the database, who streams it, and its batches."""
    database = call.served.database
    if database is None:
        return {"status": None, "consumers": 0, "charts": []}
    status: Status = await database.status()
    consumers = {one.consumer for one in status.checkpoints}
    return {"status": status, "consumers": len(consumers), "charts": await outbox_charts(call)}


@page("/spark", "spark.html", "Spark", whole=True)
async def show_spark(call: PageCall) -> Context:
    """Show the streaming queries of Spark that read or write the store."""
    return {"queries": await call.hw.store.run(query_statuses())}


@page("/timed", "timed.html", "Timed jobs", whole=True)
async def show_timed(call: PageCall) -> Context:
    """Show all timed jobs: when each is due, and how its last run ended."""
    return {"jobs": await call.hw.store.run(list_infos())}


@page("/timed/{job}", "timed_job.html", "Timed jobs", whole=True)
async def show_timed_job(call: PageCall) -> Context:
    """Show when a timed job is due and what happened to it, the newest first."""
    run = call.hw.store.run
    events = await run(history(call.name, 100))
    return {"job": call.name, "info": await run(info(call.name)), "events": events[::-1]}
