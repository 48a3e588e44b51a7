"""The store as a whole: the audit, processes, and what the doctor finds."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from headwater.serve.api.audit import AUDIT
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.links import query
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.store.doctor import examine

_NOTES: Final = 100
# So many are looked at for those that match, and by which of their fields.
_SEARCHED: Final = 2000
_AUDITED: Final = ("who", "what", "path", "outcome")


async def show_audit(call: PageCall) -> Context:
    """Show what was changed by whom, the newest first."""
    call.check(AUDIT)
    stream = call.hw.stream(AUDIT)
    info = await stream.info()
    end = min(call.number("before", info.last + 1) or info.last + 1, info.last + 1)
    searched = _SEARCHED if any(call.query.get(name) for name in _AUDITED) else _NOTES
    start = max(end - searched, info.first)
    read = await stream.read(start, end - start) if end > start else []
    notes = []
    wanted = {name: call.query.get(name, "").strip().lower() for name in _AUDITED}
    for offset, message in enumerate(read, start):
        if message is None:
            continue
        try:
            note = msgspec.json.decode(message.value)
        except msgspec.DecodeError:
            continue
        if all(word in str(note.get(name, "")).lower() for name, word in wanted.items()):
            notes.append({"offset": offset, "time_ms": message.time_ms, **note})
    kept = {name: word for name, word in wanted.items() if word}
    older = query(**kept, before=start) if start > info.first else None
    return {"notes": notes[::-1], "older": older, "looked": len(read), "filtered": bool(kept)}


async def show_processes(call: PageCall) -> Context:
    """Show the processes that report themselves: servers, and applications with their parts."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
    return {"processes": await call.served.facts.processes()}


async def show_store(call: PageCall) -> Context:
    """Show what the store promises, by its settings and its state."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
    return {"report": await asyncio.to_thread(examine, call.served.store_url)}
