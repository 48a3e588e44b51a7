"""The private valkey-server of a data directory: start it, share it, let it end.

A user's hold is a shared lock on the directory. The first user launches the server, later ones in
any process attach to it, and a supervisor process (see `supervisor.py`, which also lists the locks)
ends it when the last hold is gone, be it by `close()`, by exit or by kill -9.

Promises: one server per directory; it listens on a unix socket only, for this user only; what it
acknowledged is on disk; after a crash of anything, the next `open` or `ensure_running` puts things
right without being asked. Data that the server refuses to load is never deleted: that is an
`EmbeddedServerFailed` with the server's own message.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headwater import instrument
from headwater.errors import EmbeddedServerFailed
from headwater.store import supervisor
from headwater.store.data_files import note_data
from headwater.store.directory import (
    absolute,
    check_format,
    explained,
    is_at,
    locked,
    prepare,
    remove_socket_link,
    socket_path,
    take_hold,
)
from headwater.store.launch import (
    ServerState,
    bring_up,
    probe,
    server_facts,
    shut_down,
    supervise,
    supervise_locked,
)


@dataclass(frozen=True, slots=True)
class EmbeddedStatus:
    """What is known of a data directory's server; `pid` and `version` only while it answers."""

    directory: Path
    running: bool
    loading: bool
    stays: bool
    socket: str
    pid: int | None
    version: str | None


class EmbeddedServer:
    """A user's hold on the private valkey-server of one data directory.

    Safe to share between threads. A forked child shares the hold: the server lives until both
    have closed it or ended. Several holds in one process are independent of each other.
    """

    directory: Path
    socket_path: str

    def __init__(self, directory: Path) -> None:
        """Take the hold; `open` is the way in, since it also brings the server up."""
        self.directory = directory
        self.socket_path = socket_path(directory)
        self._changing = threading.Lock()
        self._hold: io.FileIO | None = take_hold(directory)

    @classmethod
    def open(cls, directory: Path | str) -> EmbeddedServer:
        """Attach to the directory's server, starting it when there is none.

        Returns when the server has loaded its data and answers. Raises `EmbeddedServerFailed` when
        it cannot be had, and FormatTooNew. Costs a round trip to attach, tens of milliseconds to
        start, plus the time to load, which has no limit.
        """
        path = absolute(directory)
        with explained(path):
            prepare(path)
            check_format(path)
            server = cls(path)
            try:
                bring_up(path, server.socket_path)
            except BaseException:
                server.close()
                raise
        return server

    def ensure_running(self) -> None:
        """Restart the server if it died; for use after a connection error.

        Any number of threads and processes may call it at once: one of them restarts, all return
        when the server answers. Costs a round trip when the server is alive.
        """
        with explained(self.directory):
            self.check_hold()
            self.socket_path = socket_path(self.directory)
            if launches := bring_up(self.directory, self.socket_path):
                instrument.count("store.restart", str(self.directory), launches)

    def close(self) -> None:
        """Give up the hold; the server ends when nobody else has one. May be called again."""
        with self._changing:
            hold, self._hold = self._hold, None
        if hold is None:
            return
        if is_at(hold, self.directory / supervisor.USERS_LOCK):
            note_data(self.directory)
        # If the supervisor was killed, the last user would leave unnoticed.
        with contextlib.suppress(OSError, EmbeddedServerFailed):
            if not supervisor.is_free(self.directory / supervisor.SERVER_LOCK):
                supervise(self.directory)
        # Closed, not unlocked: a forked child that shares the lock keeps it.
        hold.close()

    def check_hold(self) -> None:
        """Refuse to continue when the lock that is held is not the one at the path any more."""
        with self._changing:
            if self._hold is None:
                raise EmbeddedServerFailed(
                    f"the hold on {self.directory} was closed; open the store again"
                )
            if not is_at(self._hold, self.directory / supervisor.USERS_LOCK):
                raise EmbeddedServerFailed(
                    f"the data directory {self.directory} was removed, moved or replaced while it "
                    "was in use, and its server was stopped, so that no write is acknowledged that "
                    "nobody could find again; put the directory back, or connect again to use what "
                    "is there now",
                    lasting=True,
                )

    def __enter__(self) -> Self:
        """Return the hold itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the hold."""
        self.close()


def status(directory: Path | str) -> EmbeddedStatus:
    """Return what runs on the directory; takes no hold, starts nothing, creates nothing there."""
    path = absolute(directory)
    with explained(path):
        address = socket_path(path)
        state = probe(address)
        facts = {} if state is ServerState.ABSENT else server_facts(address)
        return EmbeddedStatus(
            directory=path,
            running=state is not ServerState.ABSENT,
            loading=state is ServerState.LOADING,
            stays=(path / supervisor.STAY).exists(),
            socket=address,
            pid=int(facts["process_id"]) if "process_id" in facts else None,
            version=facts.get("valkey_version") or facts.get("redis_version"),
        )


def start(directory: Path | str) -> EmbeddedStatus:
    """Start the server, or attach to it, and let it stay without users until `stop`."""
    with EmbeddedServer.open(directory) as server, explained(server.directory):
        with locked(server.directory / supervisor.START_LOCK):
            supervisor.lock_file(server.directory / supervisor.STAY).close()
        return status(server.directory)


def stop(directory: Path | str, *, now: bool = False) -> EmbeddedStatus:
    """Let the server end with its last user, which is at once when there is none.

    With `now` it is shut down cleanly in any case; a user who is still there gets it back
    by `ensure_running`. Returns when the server has ended, or when users keep it.
    """
    path = absolute(directory)
    if not (path / supervisor.USERS_LOCK).exists():
        return status(path)
    with explained(path), supervisor.lock_file(path / supervisor.USERS_LOCK) as users:
        with locked(path / supervisor.START_LOCK):
            (path / supervisor.STAY).unlink(missing_ok=True)
            alone = supervisor.try_lock(users, fcntl.LOCK_EX)
            if alone or now:
                shut_down(path)
            elif not supervisor.is_free(path / supervisor.SERVER_LOCK):
                supervise_locked(path)
        if not alone:
            # At once if users hold it too; if the supervisor is just ending the server, then after.
            fcntl.flock(users, fcntl.LOCK_SH)
        return status(path)


def discard(directory: Path) -> None:
    """Stop the server of a directory that nobody else uses, and remove all of it."""
    stop(directory, now=True)
    shutil.rmtree(directory, ignore_errors=True)
    remove_socket_link(absolute(directory))
