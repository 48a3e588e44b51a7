"""A connection of a RESP client: commands are answered in the order in which they were sent.

A command is begun when those before it are answered, except that writes to one stream which follow
each other go together. Whatever a client does, it holds a place, bytes and time within the limits
only: one that sends slowly, reads slowly or shows no token is disconnected.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from headwater.serve.batching import MOST_BYTES, MOST_ITEMS
from headwater.serve.connections import ClientConnection, OpenConnections, serve_connections
from headwater.serve.limits import ANONYMOUS
from headwater.serve.listening import ServerProcess
from headwater.serve.resp.commands import Write
from headwater.serve.resp.door import NOT_KNOWN, Door, RespSession
from headwater.serve.resp.parsing import CommandParser
from headwater.serve.resp.replies import ErrorReply, encode_reply, error_reply
from headwater.serve.resp.table import call_command, find_command, refusal
from headwater.store.faults import CallerGone, call_for


def gather_writes(
    session: RespSession, write: Write, key: bytes, take: Callable[[], list[bytes] | None]
) -> tuple[Write, int, list[bytes] | None]:
    """Join the writes of single entries to the same stream that follow one.

    Only those whose answers cannot differ: each is checked and authorized by itself, and the first
    that would be refused ends the run.

    Returns the writes as one, how many they are, and the command behind them, if there is one.
    """
    stream, entries, size = write
    words = None
    while len(entries) < MOST_ITEMS and size < MOST_BYTES:
        words = take()
        if words is None or len(words) != 4 or words[1] != key or words[0].upper() != b"TWRITE":
            break
        try:
            follower: Write = call_command(find_command(words), session, words)
        except Exception:  # noqa: BLE001  it is called again, and answered, in its turn
            break
        entries += follower.entries
        size += follower.size
        words = None
    return Write(stream, entries, size), len(entries), words


# So many commands of one client are answered before others have their turn.
_AT_ONCE: Final = 256
_MOST_AHEAD_BYTES: Final = 256 << 10
_MOST_ANONYMOUS_BYTES: Final = 1 << 20


class RespConnection(ClientConnection):
    """One connection."""

    def __init__(self, all_open: OpenConnections, door: Door) -> None:
        super().__init__(all_open)
        self._door = door
        known = not door.tokens.required
        self._parser = CommandParser(door.limits.known if known else ANONYMOUS)
        self._session = RespSession(door, next(door.numbers), "")
        self._task: asyncio.Task[None] | None = None
        # A command is under way; those behind it wait.
        self._busy = False
        # A command that was looked at while the one before was begun.
        self._ahead: list[bytes] | None = None

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among the open connections, or answer that there is none."""
        self._transport = cast("asyncio.Transport", transport)
        self._door.connections += 1
        if not self._all_open.add(self, known=self._session.grant is not None):
            self._transport.write(b"-ERR max number of clients reached\r\n")
            self._transport.close()
            return
        peer = transport.get_extra_info("peername")
        self._session.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unix:0"
        if (own := transport.get_extra_info("socket")) is not None:
            with suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._door.sessions[self._session.id] = self._session

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget the connection; a command that waits is given up, another one continues."""
        self._transport = None
        self._caller.gone = True
        self._door.sessions.pop(self._session.id, None)
        if self._session.blocked and self._task is not None:
            self._task.cancel()
        self._parser.drop()
        self._ahead = None
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; what follows a command that is under way waits."""
        if self._ending:
            return
        self._parser.feed(data)
        if not self._busy:
            self._go_on()
        if self._busy or self._parser.begun or self._held:
            self._count_held()
        ahead = self._parser.held_bytes
        if self._session.grant is None:
            if ahead > _MOST_ANONYMOUS_BYTES:
                self.abort()
        elif self._busy and ahead > _MOST_AHEAD_BYTES:
            self._pause()

    def eof_received(self) -> bool:
        """Answer what a client has sent before it closed its side, unless it waits; then close."""
        self._no_more = True
        # It may be gone altogether: what cannot be sent to the store soon is given up.
        self._caller.gone = True
        self._go_on()
        return self._closes_one_side and not (self._ending or self._session.blocked)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._full = True
        self._pause()

    def resume_writing(self) -> None:
        """Go on with the commands of a client that reads again."""
        self._full = False
        self._go_on()

    def _resume(self) -> None:
        if self._paused and not self._full and not self._busy and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # One command after another

    def _next(self) -> list[bytes] | None:
        words, self._ahead = self._ahead, None
        return self._parser.next() if words is None else words

    def _go_on(self) -> None:
        """Answer commands until one takes time; then others have their turn."""
        replies: list[bytes] = []
        session = self._session
        for _ in range(_AT_ONCE):
            if self._busy or self._full or self._ending or self._transport is None:
                break
            words = self._next()
            if words is None:
                if self._parser.fault is not None:
                    replies.append(encode_reply(ErrorReply("ERR", self._parser.fault), 2))
                self._ending = self._no_more or self._parser.fault is not None
                break
            reply = self._begin(words)
            if reply is None:
                self._busy = True
            else:
                replies.append(reply)
                self._ending = session.ending
        else:
            asyncio.get_running_loop().call_soon(self._go_on)
        if replies:
            self._send(replies[0] if len(replies) == 1 else b"".join(replies))
        if self._parser.begun:
            self._begun_at = self._begun_at or time.monotonic()
        else:
            self._begun_at = 0.0
        if self._ending and self._transport is not None and not self._busy:
            self._transport.close()
        elif self._paused:
            self._resume()

    def _begin(self, words: list[bytes]) -> bytes | None:
        """Begin a command; returns its reply, or None when that comes later."""
        session = self._session
        self._door.commands += 1
        try:
            command = find_command(words)
            found = call_command(command, session, words)
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            return encode_reply(refusal(error, words), session.protocol)
        if command.scope is None and not self._note_grant():
            session.ending = True
            why = "this token has too many connections open; close some of them"
            return encode_reply(ErrorReply("ERR", why), session.protocol)
        if type(found) is Write:
            self._write(found, words)
            return None
        if isinstance(found, Coroutine):
            self._task = asyncio.get_running_loop().create_task(
                self._finish_later(found, words, holds=not command.blocking)
            )
            call_for(self._task, (self._caller,))
            return None
        return encode_reply(found, session.protocol)

    def _note_grant(self) -> bool:
        """Widen or narrow the limits of a client that has logged in or out.

        Returns False for one whose token has no place left.
        """
        grant = self._session.grant
        if grant is None:
            self._parser.limits = ANONYMOUS
        elif self._parser.limits is ANONYMOUS:
            if not self._all_open.know(self, grant.digest):
                return False
            self._parser.limits = self._door.limits.known
        return True

    async def _finish_later(
        self, work: Coroutine[Any, Any, Any], words: list[bytes], *, holds: bool
    ) -> None:
        """Answer when the work is done; it ``holds`` a connection to the store unless it waits."""
        session = self._session
        try:
            if holds:
                waits = self._door.at_store.locked()
                async with self._door.at_store:
                    if waits and self._caller.gone:
                        work.close()
                        raise CallerGone
                    found = await work
            else:
                found = await work
            reply = encode_reply(found, session.protocol)
        except asyncio.CancelledError:
            self._task = None
            self._answer(b"" if session.may_go_on() else encode_reply(NOT_KNOWN, 2))
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            reply = encode_reply(refusal(error, words), session.protocol)
        self._task = None
        self._answer(reply)

    def _write(self, write: Write, words: list[bytes]) -> None:
        """Write entries, and with them those of the writes to the same stream that follow."""
        count = 1
        if len(words) == 4:
            write, count, self._ahead = gather_writes(self._session, write, words[1], self._next)

        def done(answer: int | Exception, at: int) -> None:
            if isinstance(answer, Exception):
                reply = encode_reply(error_reply(answer), 2) * count
            else:
                first = answer + at
                reply = b"".join([b":%d\r\n" % (first + number) for number in range(count)])
            self._answer(reply)

        self._door.commands += count - 1
        try:
            self._door.writes.add(write.stream, write.entries, write.size, done, self._caller)
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            asyncio.get_running_loop().call_soon(done, error, 0)

    def _answer(self, reply: bytes) -> None:
        """Send the reply to the command that was under way, and continue."""
        self._busy = False
        if self._transport is None:
            self._forget()
            return
        self._send(reply)
        if self._ending:
            self._transport.close()
            return
        more = self._ahead is not None or self._parser.begun or self._parser.fault is not None
        if more or self._no_more:
            self._go_on()
        elif self._paused:
            self._resume()
        if self._held:
            self._count_held()

    def _send(self, reply: bytes) -> None:
        assert self._transport is not None
        if len(reply) > self._door.limits.max_reply:
            why = f"the reply has {len(reply)} bytes, which is too much; ask for less"
            reply = encode_reply(ErrorReply("ERR", why), 2)
        self._written += len(reply)
        self._transport.write(reply)

    # Bytes, time and the end

    @property
    def sheddable(self) -> bool:
        """Whether no command is under way, or one that waits for messages."""
        return not self._busy or (self._session.blocked and self._task is not None)

    @property
    def sheddable_bytes(self) -> int:
        """How many bytes ``shed`` would free: none of those of a command under way."""
        return 0 if self._busy else self._held

    def _count_held(self) -> None:
        """Count what is buffered here now; this connection may be shed by it, as may others."""
        held = self._parser.held_bytes
        if self._transport is not None:
            held += self._transport.get_write_buffer_size()
        self._hold(held)

    def _forget(self) -> None:
        """Give up place and bytes, unless a command is still under way."""
        if self._released:
            return
        self._count_held()
        if not self._busy:
            self._release()
            self._all_open.discard(self)

    def shed(self, reason: str) -> None:
        """Close the connection to make room."""
        if self._transport is None or not self.sheddable:
            return
        if self._busy:
            self.finish()
            return
        if not self._transport.get_write_buffer_size():
            self._transport.write(encode_reply(ErrorReply("ERR", reason), 2))
        self._parser.drop()
        self._ending = True
        self._transport.close()
        self._forget()

    def check_timeout(self, now: float) -> None:
        """Close a connection whose client takes too long to log in, to send or to read."""
        transport, limits = self._transport, self._door.limits
        if transport is None:
            return
        unsent = transport.get_write_buffer_size()
        if self._overdue(unsent, now, limits.reply_ms):
            self.abort()
            return
        if self._held or unsent:
            self._count_held()
        if self._session.blocked and self._task is not None:
            if self._no_more:
                self.finish()
            elif not self._session.may_go_on():
                self._task.cancel()
        if self._busy:
            return
        if self._session.grant is None:
            late = (now - self._session.since) * 1000 > limits.hello_ms
        else:
            late = bool(self._begun_at) and (now - self._begun_at) * 1000 > limits.frame_ms
        if late:
            self.abort()

    def finish(self) -> None:
        """Take no command behind the one that is under way; one that waits is given up."""
        self._ending = True
        if self._transport is None:
            return
        if self._session.blocked and self._task is not None:
            self._task.cancel()
        elif not self._busy:
            self._transport.close()


async def serve_resp(process: ServerProcess, door: Door, tls: ssl.SSLContext | None = None) -> None:
    """Answer commands until the process is told to stop.

    Blocked readers are disconnected at once then; see serve_connections.
    """
    limits, changed = door.limits, partial(door.change, "resp_connections")

    def connection(all_open: OpenConnections) -> RespConnection:
        return RespConnection(all_open, door)

    await serve_connections(process, limits, connection, tls, limits.hello_ms, changed)
