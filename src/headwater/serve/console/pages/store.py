"""The store as a whole: the audit, processes, and what the doctor finds."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import msgspec

from headwater.kernel.declaring import Scope
from headwater.serve.audit import AUDIT
from headwater.serve.console.bounded_reads import each_message
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.links import query
from headwater.serve.http.messages import Refused
from headwater.store.doctor import examine

_NOTES: Final = 100
# So many are looked at for those that match, and by which of their fields.
_SEARCHED: Final = 2000
_AUDITED: Final = ("who", "what", "path", "outcome")
_COLUMNS: Final = (*_AUDITED, "method", "offset", "time_ms")
# So many characters of the rest of a note are shown.
_DETAILS: Final = 16 * 1024


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


async def show_processes(call: PageCall) -> Context:
    """Show the processes that report themselves: servers, and applications with their parts."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
    return {"processes": await call.served.watched.facts.processes()}


async def show_store(call: PageCall) -> Context:
    """Show what the store promises, by its settings and its state."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
    return {"report": await asyncio.to_thread(examine, call.served.store_url)}
