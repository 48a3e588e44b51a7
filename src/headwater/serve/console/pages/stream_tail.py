"""The live tail of a stream for a browser: as many messages as a person can see, and what it skips.

A browser cannot show a stream of a hundred thousand messages a second, and must not be sent it. So
this tail reads a few times a second and, where more came than a screen holds, goes on with the
newest; the offsets that it left out are named, and can be read. The tail of the API leaves out
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from headwater.kernel.headers import LIST_BYTES
from headwater.serve.api.tails import ALIVE, HELLO, events_of
from headwater.serve.console.calls import PageCall
from headwater.serve.console.pages.stream import opened
from headwater.serve.http.messages import StreamedReply

# A browser is sent so many messages at once at most, and so many times a second.
_SHOWN: Final = 100
_PAUSE_S: Final = 0.5
# No offset has more digits.
_DIGITS: Final = 16
_NO_STORE: Final = b"Cache-Control: no-store\r\n"


async def follow_stream(call: PageCall) -> StreamedReply:
    """Send messages as they are written, and what was left out, as server-sent events."""
    info = await opened(call)
    seen = (call.request.headers or {}).get(b"last-event-id", b"")
    known = seen.isdigit() and len(seen) <= _DIGITS
    at = int(seen) + 1 if known else call.number("from", info.last + 1) or 1
    pieces = _events(call, max(min(at, info.last + 1), 1))
    return StreamedReply(200, pieces, "text/event-stream", _NO_STORE, endless=True)


async def _events(call: PageCall, at: int) -> AsyncGenerator[bytes, None]:
    stream, tails = call.hw.stream(call.name), call.served.tails
    yield HELLO
    while call.served.tokens.still(call.grant):
        passage = await stream.read_from(at, _SHOWN, max_bytes=LIST_BYTES)
        if passage.last - passage.next >= _SHOWN:
            first, at = at, passage.last - _SHOWN + 1
            facts = msgspec.json.encode({"first": first, "last": at - 1, "why": "too many to show"})
            yield b"event: skipped\nid: %d\ndata: %b\n\n" % (at - 1, facts)
            continue
        if passage.next > at:
            yield events_of(passage)
            at = passage.next
            await asyncio.sleep(_PAUSE_S)
            continue
        await tails.news({call.name: at}, lambda: call.served.tokens.still(call.grant))
        yield ALIVE
