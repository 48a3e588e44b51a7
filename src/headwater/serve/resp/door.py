"""What is known of clients: what all of a process share, and the session of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, Final, cast

from headwater.aio_client import AsyncHeadwater
from headwater.doors.catalogue import QUEUE, Kind
from headwater.kernel.declaring import Scope
from headwater.queue.aio_queue import AsyncQueue
from headwater.serve.batching import StreamWrites, TopicWrites
from headwater.serve.limits import RespLimits
from headwater.serve.resp.replies import CommandRefused, ErrorReply
from headwater.serve.resp.waiting import Waiting
from headwater.serve.tokens import EVERYBODY, Grant, Tokens

if TYPE_CHECKING:
    from headwater.serve.resp.commands import RespCommand, Words
    from headwater.timeline.farm.aio_farm import AsyncFarm


# A name costs little; those that are used are many fewer.
_MOST_OPENED = 1000
_MOST_CALLS = 64


class Door:
    """The door of one process; one that is ``read_only`` refuses whatever changes something.

    ``change`` is called with the name of a level of the metrics, and by how much it changes.
    """

    def __init__(
        self,
        client: AsyncHeadwater,
        writes: StreamWrites,
        tokens: Tokens,
        limits: RespLimits,
        farm: AsyncFarm | None = None,
        read_only: bool = False,
        change: Callable[[str, int], None] = lambda _name, _n: None,
    ) -> None:
        self.client = client
        self.tokens = tokens
        self.limits = limits
        self.read_only = read_only
        self.change = change
        self.writes = writes
        self.topic_writes = TopicWrites(client, writes)
        self.waiting = Waiting()
        # Held by all that asks the store and does not wait there: each has a connection to it.
        self.at_store = asyncio.Semaphore(_MOST_CALLS)
        self.sessions: dict[int, RespSession] = {}
        self.numbers = count(1)
        self.since = time.monotonic()
        self.commands = 0
        self.connections = 0
        self._farm = farm
        self._opened: dict[tuple[str, ...], Any] = {}

    def opened(self, kind: Kind, *names: str) -> Any:
        """Return the object of that address, which clients share; raises InvalidInput."""
        address = (kind.name, *names)
        target = self._opened.get(address)
        if target is None:
            if len(self._opened) >= _MOST_OPENED:
                self._opened.clear()
            target = self._opened[address] = kind.open(self.client, *names)
        return target

    def queue(self, name: str) -> AsyncQueue:
        """Return the queue of that name; raises InvalidInput."""
        return cast(AsyncQueue, self.opened(QUEUE, name))

    @property
    def farm(self) -> AsyncFarm:
        """The farm of timelines; raises CommandRefused when the server has none."""
        if self._farm is None:
            raise CommandRefused(
                "this server has no farm of timelines; start it with --farm", "NOTFOUND"
            )
        return self._farm


NOT_KNOWN: Final = ErrorReply("NOAUTH", "Authentication required.")


class RespSession:
    """The session of a client, from its connection to its end."""

    __slots__ = (
        "address", "blocked", "discarding", "door", "ending", "grant", "id", "last_command",
        "library", "library_version", "name", "protocol", "since",
    )  # fmt: skip

    def __init__(self, door: Door, number: int, address: str) -> None:
        self.door = door
        self.id = number
        self.address = address
        self.since = time.monotonic()
        self.protocol = 2
        self.name = ""
        self.library = ""
        self.library_version = ""
        self.last_command = ""
        self.grant: Grant | None = None if door.tokens.required else EVERYBODY
        # Whether the present command waits for messages, and may be given up at any time.
        self.blocked = False
        # Whether MULTI was refused: so is what follows, until the client ends its transaction.
        self.discarding = False
        # Whether the connection is closed behind the present reply.
        self.ending = False

    def authorize(self, command: RespCommand, words: Words) -> None:
        """Let a command pass; raises CommandRefused unless the token of the client allows it."""
        needed = command.needed(words)
        if needed is None:
            return
        grant = self.grant
        if grant is None or not self.may_go_on():
            raise CommandRefused(NOT_KNOWN.text, NOT_KNOWN.code)
        if needed > Scope.READ and command.keys and self.door.read_only:
            raise CommandRefused(
                "this server is read-only; use another one for changes", "READONLY"
            )
        if not command.keys and needed > Scope.READ and not grant.everywhere(needed):
            raise self._denied(needed, command.name, "everything")
        for name in command.names(words):
            self.check(needed, name, command.name)

    def may_go_on(self) -> bool:
        """Return whether the token of the client is in force; forgets one that was revoked."""
        if self.grant is not None and not self.door.tokens.still(self.grant):
            self.grant = None
        return self.grant is not None

    def check(self, needed: Scope, name: bytes, command: str) -> None:
        """Raise CommandRefused unless the token of the client has a scope on a name."""
        text = name.decode("utf-8", "replace")
        if self.grant is None or not self.grant.allows(needed, text):
            raise self._denied(needed, command, repr(text[:200]))

    def _denied(self, needed: Scope, command: str, where: str) -> CommandRefused:
        return CommandRefused(
            f"this token does not allow '{command.lower()}' on {where}; use one with the scope "
            f"{needed.name.lower()} on it",
            "NOPERM",
        )

    @contextmanager
    def may_wait(self) -> Iterator[None]:
        """Let the present command wait for messages; it is given up when its client goes away."""
        self.blocked = True
        self.door.change("resp_blocked", 1)
        try:
            yield
        finally:
            self.blocked = False
            self.door.change("resp_blocked", -1)

    def log_in(self, token: str) -> None:
        """Accept a token; raises CommandRefused, and leaves everything as it was, for another."""
        grant = self.door.tokens.find(token)
        if grant is None:
            raise CommandRefused("invalid username-password pair or user is disabled.", "WRONGPASS")
        self.grant = grant

    def reset(self) -> None:
        """Forget what the client has set, its token too."""
        self.protocol = 2
        self.name = ""
        self.discarding = False
        self.grant = None if self.door.tokens.required else EVERYBODY
