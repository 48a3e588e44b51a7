"""What both stores do when it takes more than one call: first contact, rights, recovery.

Each is written once, as a generator of steps. A step is a call without arguments: the sync store
makes it, the async store makes and awaits it, and either sends back what it returned or raised.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import secrets
from collections.abc import Callable, Generator, Sequence
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

import redis

from headwater.errors import AccessDenied, FormatTooNew
from headwater.kernel.failures import Outage
from headwater.store import faults
from headwater.store.call import Call, Key, Look, Many, Request, ScanKeys, Wait
from headwater.store.embedded import EmbeddedServer
from headwater.store.faults import RequestObservation
from headwater.store.library import (
    FIRST_FORMAT,
    FORMAT,
    KEY,
    LOOK,
    NOTE,
    NOTE_S,
    encoder,
    format_of_ours,
    library,
    name_in_server,
    needs_loading,
)
from headwater.store.many import chunks
from headwater.store.url import Address

# ── Rights ────────────────────────────────────────────────────────────────────────────────────────
# Which rights a user of the store needs, and which of them it lacks.
#
# Commands that a function runs are checked against the user who called it, so they count, too.
# They are read from the library itself, so that the list stays true when the functions change.


KEYS = "~hw:*"
_KEY = "hw:{doctor}"
# What the client itself sends: to connect, to call, to block; then what a cluster needs as well.
SENT = (
    *("client|setname", "client|id", "client|unblock"),
    *("info", "fcall", "fcall_ro", "function|load", "blpop", "xread"),
)
_SENT_TO_CLUSTER = ("cluster|slots", "asking")
# Arguments that the server's dry run accepts; the other commands take any number of keys.
_SAMPLES: dict[str, tuple[Any, ...]] = {
    "client|setname": ("doctor",),
    "client|id": (),
    "client|unblock": (0,),
    "info": (),
    "fcall": (name_in_server("hw_version"), 1, _KEY),
    "fcall_ro": (name_in_server("hw_version"), 1, _KEY),
    "function|load": ("",),
    "blpop": (_KEY, 0),
    "xread": ("STREAMS", _KEY, 0),
    "time": (),
    "cluster|slots": (),
    "asking": (),
}
_MOST_ARGUMENTS = 6


@cache
def needed(cluster: bool) -> tuple[str, ...]:
    """Return every command that a user must be allowed to run, as access rules name them."""
    calls = re.findall(r"redis\.p?call\(\s*'([A-Z]+)'(?:,\s*'([A-Z]+)')?", library().source)
    inside = {"|".join(filter(None, words)).lower() for words in calls}
    sent = (*SENT, *(_SENT_TO_CLUSTER if cluster else ()))
    return (*sent, *sorted(inside.difference(sent)))


def rules(cluster: bool) -> str:
    """Return the rights as words of ACL SETUSER."""
    return " ".join((KEYS, *(f"+{command}" for command in needed(cluster))))


def request(cluster: bool) -> tuple[Any, ...]:
    """Return the command that asks a server which of the needed rights its caller lacks."""
    inside = [command for command in needed(cluster) if command not in (*SENT, *_SENT_TO_CLUSTER)]
    return ("FCALL", name_in_server("hw_rights"), 0, _KEY, *inside)


def check(denied: Sequence[bytes], where: str, cluster: bool) -> None:
    """Raise AccessDenied for commands that a server denies, with all of them and the cure."""
    if denied:
        names = ", ".join(command.decode() for command in denied)
        raise AccessDenied(
            where,
            f"the user may not run {names} on keys of the pattern {KEYS[1:]}",
            f"grant what is missing: ACL SETUSER ... {rules(cluster)}",
        )


def lacking(ask: Callable[..., Any], user: str, cluster: bool) -> list[str]:
    """Return the commands that the user may not run on our keys, by the server's own dry run.

    Raises redis.ResponseError when the server does not let us ask.
    """
    return [command for command in needed(cluster) if not _may_run(ask, user, command)]


def _may_run(ask: Callable[..., Any], user: str, command: str) -> bool:
    words = command.split("|")
    if command in _SAMPLES:
        return bool(ask("ACL", "DRYRUN", user, *words, *_SAMPLES[command]) == b"OK")
    for count in range(1, _MOST_ARGUMENTS):
        try:
            return bool(ask("ACL", "DRYRUN", user, *words, *[_KEY] * count) == b"OK")
        except redis.ResponseError as error:
            if "wrong number of arguments" not in str(error):
                raise
    return True


# ── Steps ─────────────────────────────────────────────────────────────────────────────────────────


log = logging.getLogger("headwater.store")

T = TypeVar("T")
Steps: TypeAlias = Generator[Callable[[], Any], Any, T]

GREETING = Call("hw_version", "", read_only=True)

# How long a cancelled call waits until the server has taken it out of the line.
LEAVE_TIMEOUT_S = 1.0


def random_token() -> str:
    """Return an unguessable text of 8 characters."""
    return secrets.token_hex(4)


class _AwaitedStore(Outage):
    """The time until a store is there for the first time."""

    BEGIN = "waiting for the store at %s, %s: %s"
    END = "the store at %s is there, after %.1f s and %d tries"


class StoreSteps:
    """The part of a store that is the same in both; a store adds how its steps are made.

    ``sleep`` waits for this many seconds, ``apart`` makes a call that may take long.
    """

    def __init__(
        self,
        address: Address,
        server: EmbeddedServer | None,
        connections: Any,
        clock: Callable[[], float],
        token: Callable[[], str],
        *,
        sleep: Callable[[float], Any],
        apart: Callable[[Callable[[], Any]], Any],
        check_rights: bool,
    ) -> None:
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        self.connections = connections
        self.clock, self.token = clock, token
        self.version = ""
        self._encode = encoder(address.kind)
        self._sleep, self._apart = sleep, apart
        self._check_rights = check_rights
        # What waiting requests must undo when the client is closed meanwhile.
        self._leaves: dict[int, Call] = {}
        # The format that our library writes, and when this client has to note itself again. Who
        # need not have rights on our keys uses timelines only, which have no format of ours.
        self._writes = FIRST_FORMAT
        self._note_at = math.inf

    # ── First contact ────────────────────────────────────────────────────────────────────────

    def _first_contact(self, wait_s: float | None) -> Steps[str]:
        """Check every server of the store and load our functions; returns the server's version.

        Waits as a call does for a store that is not ready, but only ``wait_s`` as long as no server
        of it has answered; without that, not at all for one where nobody listens.
        """
        # An embedded server was just started, or attached to: it is there.
        absent_s = None if self.server else wait_s
        first = self.server is None and wait_s is None
        recovery = faults.Recovery(
            GREETING, self.where, None, self.clock, absent_s=absent_s, first=first
        )
        attempt = partial(self._check_and_load, recovery)
        try:
            return (yield from attempt())
        except (redis.RedisError, OSError) as error:
            fault = error
        most_s = faults.PATIENCE_S if absent_s is None else absent_s
        outage = _AwaitedStore(self.where, log, self.clock, most_s=most_s)
        version = yield from self._retry(recovery, fault, attempt, outage)
        outage.over()
        return version

    def _check_and_load(self, recovery: faults.Recovery) -> Steps[str]:
        cluster = self.kind == "cluster"
        infos = []
        for server in (yield self.connections.servers):
            if cluster:
                # One of its servers has named the others.
                recovery.note_answer()
            reply = yield partial(server.send, "", ("INFO", "server"), fresh=True)
            recovery.note_answer()
            infos.append(faults.parse_info(reply))
        versions = [faults.check_server(info, self.where) for info in infos]
        if not cluster:
            faults.refuse_node(infos[0], self.where)
        yield from self._load_library(first=self._check_rights)
        if self._check_rights:
            for denied in (yield from self._command(*request(cluster))):
                check(denied, self.where, cluster)
            yield from self._note_or_look()
        return versions[0]

    def _load_library(self, *, first: bool = False) -> Steps[None]:
        """Load our function library into every server that has none or an older one.

        The first time, the record says which format it writes.
        """
        ask = ("FCALL", name_in_server("hw_version"), 0)
        for server in (yield self.connections.servers):
            try:
                reply = yield partial(server.send, "", ask, fresh=True)
                found = reply.decode()
            except redis.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
                found = None
            if first:
                first, known = False, format_of_ours(found)
                self._writes = known or (yield from self._look_up_format())
            if needs_loading(found, self._writes):
                load = ("FUNCTION", "LOAD", "REPLACE", library(self._writes).source)
                yield partial(server.send, "", load, fresh=True)

    def _look_up_format(self) -> Steps[int]:
        """Return the format in use; a store without a record begins with what we understand.

        Loading the library takes long, and so it is loaded once.
        """
        try:
            look = partial(self.connections.send, KEY, ("HGET", KEY, "format"), fresh=True)
            return min(int((yield look) or FORMAT), FORMAT)
        except redis.ResponseError:
            return FIRST_FORMAT

    def _note(self) -> Steps[None]:
        """Note in the store's record that a client of this release is here.

        Also learns which format is in use, and lets our functions write it.
        """
        self._note_at = self.clock() + NOTE_S
        in_use = yield partial(self.connections.send, KEY, self._encode(NOTE), fresh=True)
        if in_use > self._writes:
            self._writes = in_use
            # A user who may not load functions continues with those that are there.
            with contextlib.suppress(redis.exceptions.NoPermissionError):
                yield from self._load_library()

    def _note_or_look(self) -> Steps[None]:
        """Do so; a server that takes no writes now is only asked which format is in use.

        Raises FormatTooNew when we do not understand it.
        """
        try:
            return (yield from self._note())
        except redis.ResponseError as error:
            faults.check_format(error, NOTE, self.where)
        with contextlib.suppress(redis.ResponseError):
            look = self._encode(LOOK)
            _, in_use, *_ = yield partial(self.connections.send, KEY, look, fresh=True)
            if in_use > FORMAT:
                raise FormatTooNew(f"the store at {self.where}", in_use, FORMAT)

    def _note_again(self) -> Steps[None]:
        """Do so in the middle of work, which fails only because of a format that is too new."""
        with contextlib.suppress(redis.RedisError, OSError):
            yield from self._note_or_look()

    def _command(self, *words: Any) -> Steps[list[Any]]:
        replies = []
        for server in (yield self.connections.servers):
            reply = yield partial(server.send, "", words, fresh=True)
            replies.append(reply)
        return replies

    # ── Recovery ─────────────────────────────────────────────────────────────────────────────

    def _recovery(self, request: Call | Wait, patience_s: float | None) -> faults.Recovery:
        return faults.Recovery(request, self.where, patience_s, self.clock)

    def _recover(
        self,
        request: Call | Wait,
        command: tuple[Any, ...],
        fault: Exception,
        patience_s: float | None,
    ) -> Steps[Any]:
        """Repeat a failed call, until it succeeds or the caller must get the error."""
        recovery = self._recovery(request, patience_s)
        wait_s = request.timeout_ms / 1000 if isinstance(request, Wait) else None
        again = partial(self.connections.send, request.key, command, fresh=True, wait_s=wait_s)
        return (yield from self._retry(recovery, fault, partial(_once, again)))

    def _retry(
        self,
        recovery: faults.Recovery,
        fault: Exception,
        attempt: Callable[[], Steps[T]],
        outage: Outage | None = None,
    ) -> Steps[T]:
        while True:
            step = recovery.next_step(fault)
            if outage is not None and step != "load":
                outage.meet(fault)
            try:
                yield from self._prepare(step, recovery.delay_s)
                recovery.check_caller(fault)
                return (yield from attempt())
            except (redis.RedisError, OSError) as error:
                fault = error

    def _prepare(self, step: faults.Step, delay_s: float) -> Steps[None]:
        try:
            if step == "load":
                return (yield from self._load_library())
            yield partial(self._sleep, delay_s)
            if step == "renew":
                if self.server is not None:
                    yield partial(self._apart, self.server.ensure_running)
                yield self.connections.renew
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    # ── Many calls ───────────────────────────────────────────────────────────────────────────

    def _ask_many(
        self, request: Many, patience_s: float | None, observation: RequestObservation | None
    ) -> Steps[list[Any]]:
        """Run calls, thousands in a round trip; each recovers as a single one does."""
        replies: list[Any] = []
        for chunk in chunks(request, partial(self._recovery, patience_s=patience_s)):
            found = yield self._sending(chunk.unanswered)
            while (before := chunk.take(found)) is not None:
                if observation is not None:
                    observation.retried = True
                try:
                    yield from self._prepare(*before)
                except (redis.RedisError, OSError) as error:
                    found = [error] * len(chunk.unanswered)
                else:
                    found = yield self._sending(chunk.unanswered)
            replies += chunk.replies
        return replies

    def _sending(self, calls: Sequence[Call]) -> Callable[[], Any]:
        return partial(self.connections.send_all, self._keyed(calls))

    def _keyed(self, calls: Sequence[Call]) -> list[tuple[Key, tuple[Any, ...]]]:
        return [(call.key, self._encode(call)) for call in calls]

    def _scan(
        self, request: ScanKeys, patience_s: float | None
    ) -> Steps[tuple[int, bytes, list[bytes]]]:
        """Ask one server for some of its keys; asks again when it was down."""

        def ask() -> Steps[tuple[int, bytes, list[bytes]]]:
            servers = yield self.connections.servers
            server = servers[min(request.server, len(servers) - 1)]
            words = ("SCAN", request.cursor, "COUNT", request.page)
            cursor, keys = yield partial(server.send, "", words, fresh=True)
            return len(servers), cursor, keys

        try:
            return (yield from ask())
        except (redis.RedisError, OSError) as error:
            fault = error
        return (yield from self._retry(self._recovery(GREETING, patience_s), fault, ask))

    def _look(self, request: Look) -> Steps[list[Any] | None]:
        """Run commands that only read, in one round trip; None when that did not work at once."""
        keyed = [(request.key, command) for command in request.commands]
        replies = yield partial(self.connections.send_all, keyed)
        return None if any(isinstance(reply, Exception) for reply in replies) else replies


def leave_of(request: Request) -> Call | None:
    """Return what is to be sent when the reply of a request is not taken."""
    return request.leave if isinstance(request, (Call, Wait)) else None


def _once(step: Callable[[], Any]) -> Steps[Any]:
    return (yield step)
