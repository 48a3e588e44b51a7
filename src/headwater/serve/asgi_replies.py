"""Sends replies by ASGI: whole ones, and those that are made while they are sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

from headwater.serve.http.messages import Reply, StreamedReply

log = logging.getLogger("headwater.serve")

AsgiEvent: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[AsgiEvent]]
Send: TypeAlias = Callable[[AsgiEvent], Awaitable[None]]

# Replies that have no body, and say nothing of its length.
_BODILESS: Final = (204, 304)


async def wait_until_gone(receive: Receive) -> None:
    """Wait until the client of a request has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


class AsgiReplies:
    """The replies of an application; endless ones are ended with it."""

    def __init__(self) -> None:
        self._endless: set[asyncio.Task[None]] = set()

    async def send(
        self, reply: Reply | StreamedReply, receive: Receive, send: Send, *, bodiless: bool
    ) -> None:
        """Send a reply; without its body for a client that asked for the head only."""
        if isinstance(reply, Reply):
            body = b"" if bodiless else reply.body
            length = None if reply.status in _BODILESS else len(reply.body)
            await send(_start(reply, length))
            await send({"type": "http.response.body", "body": body})
            return
        await send(_start(reply, None))
        if bodiless:
            await reply.pieces.aclose()
            await send({"type": "http.response.body", "body": b""})
            return
        await self._stream(reply, receive, send)

    async def _stream(self, reply: StreamedReply, receive: Receive, send: Send) -> None:
        """Send the pieces of a reply until it ends, or its client is gone."""
        sending = asyncio.ensure_future(_send_pieces(reply, send))
        gone = asyncio.ensure_future(wait_until_gone(receive))
        if reply.endless:
            self._endless.add(sending)
            sending.add_done_callback(self._endless.discard)
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            is_complete = sending.done()
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait((sending, gone))
        if not is_complete:
            return
        if not sending.cancelled() and (error := sending.exception()) is not None:
            # The server around this closes the connection, by which the client notices it.
            log.error("a reply was cut off: its next piece could not be made", exc_info=error)
            raise error
        await send({"type": "http.response.body", "body": b""})

    async def end(self) -> None:
        """End what would never end, as whole replies."""
        ending = list(self._endless)
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)


async def _send_pieces(reply: StreamedReply, send: Send) -> None:
    try:
        async for piece in reply.pieces:
            if piece:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        await reply.pieces.aclose()


def _start(reply: Reply | StreamedReply, length: int | None) -> AsgiEvent:
    headers = [(b"content-type", reply.content_type.encode())]
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    for line in reply.headers.split(b"\r\n"):
        name, colon, value = line.partition(b": ")
        if colon:
            headers.append((name.lower(), value))
    return {"type": "http.response.start", "status": reply.status, "headers": headers}
