"""Sends a reply that is made while it is sent: piece by piece, as fast as its client reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headwater.serve.http.messages import StreamedReply

log = logging.getLogger("headwater.serve")


class ReplyPump:
    """Writes the pieces of a reply, each after the one before it was taken.

    ``ended`` is called once, with whether the reply is complete: a client that gets it in chunks
    can tell one that is not.
    """

    __slots__ = ("_chunked", "_ended", "_pieces", "_reply", "_room", "_task", "_whole", "_write")

    def __init__(
        self,
        reply: StreamedReply,
        write: Callable[[bytes], None],
        ended: Callable[[bool], None],
        *,
        chunked: bool,
    ) -> None:
        self._reply = reply
        self._pieces = reply.pieces
        self._write = write
        self._ended = ended
        self._chunked = chunked
        # Whether the reply is whole if it ends now.
        self._whole = False
        # Done when the client has read enough of what was written.
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def endless(self) -> bool:
        """Whether the reply ends only with its client."""
        return self._reply.endless

    def start(self) -> None:
        """Begin to send; what was stopped before ends without a piece."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._done)
        if self._whole:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async for piece in self._pieces:
                if piece:
                    self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
                while self._room is not None:
                    await self._room
        finally:
            await self._pieces.aclose()

    def _done(self, task: asyncio.Task[None]) -> None:
        """End the reply; a task that was cancelled before it began has sent nothing."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a reply is cut off: its next piece could not be made", exc_info=error)
        complete = self._whole if task.cancelled() else error is None
        if complete and self._chunked:
            self._write(b"0\r\n\r\n")
        self._ended(complete)

    def pause(self) -> None:
        """Make no further piece until the client has read."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Go on after a pause."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def finish(self) -> None:
        """End an endless reply, as a whole one; any other goes on to its end."""
        if self._reply.endless:
            self.stop()

    def stop(self) -> None:
        """End the reply where it is; its client has what was written, or is gone."""
        self._whole = True
        if self._task is not None:
            self._task.cancel()
