"""The process that ends a data directory's private server after its last user.

Run as a script, `python -I -S supervisor.py spawn DIRECTORY SERVER` or `… adopt DIRECTORY`, by
`headwater.store.embedded`; it uses the standard library only, so that it starts in milliseconds
and lives on when the environment that started it is gone. It also defines the files of a data
directory, which are the protocol between all processes that share one:

    users.lock       every user holds it shared; whoever has it exclusively knows there is none
    start.lock       held while somebody decides to launch, to stay or to stop
    supervisor.lock  held by the supervisor as long as it lives
    server.lock      held by the server process itself, which inherits it, as long as it lives
    stay             its presence asks that the server outlive its users

A server whose directory is removed or replaced would acknowledge writes into files that nobody will
find again. So the supervisor watches the directory and kills the server when it is lost; users
notice that the lock they hold is not the one at their path any more.

All locks are flock(2): the kernel gives them back however a process ends, so nothing has to be
guessed from process ids or left-over files. Who waits for several takes them in this order.

Promises: there is never more than one server on a directory; a server without users and without
`stay` is shut down cleanly; a supervisor never outlives its server, and ends it with its directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

USERS_LOCK = "users.lock"
START_LOCK = "start.lock"
SUPERVISOR_LOCK = "supervisor.lock"
SERVER_LOCK = "server.lock"
STAY = "stay"
SOCKET = "valkey.sock"
PID_FILE = "valkey.pid"
LOG = "valkey.log"
AOF_DIRECTORY = "appendonlydir"
AOF_MANIFEST = "appendonly.aof.manifest"

# How often the supervisor looks at the directory; where the kernel reports changes, at once.
WATCH_S = 0.25

# Exit status: another supervisor or server came first. Nothing is wrong; look again.
BUSY = 75
# How a line of the log begins that says that the server itself gave up. It is the last line then:
# a server that was killed, or is asked to end, leaves none, and a new start adds others.
REFUSED = "headwater: no server: "

# Everything acknowledged is on disk already, so nothing is lost by not waiting.
SHUTDOWN_COMMAND = b"SHUTDOWN NOSAVE NOW FORCE\r\n"
SHUTDOWN_GRACE_S = 10.0
LOG_LIMIT_BYTES = 1 << 20

# Every path is relative: the server runs in the data directory. So the directory may have any
# name and length, and may be moved as a whole.
SERVER_OPTIONS = {
    "dir": ".",
    "daemonize": "no",
    "port": "0",
    "unixsocket": SOCKET,
    "unixsocketperm": "700",
    "pidfile": PID_FILE,
    "logfile": LOG,
    "save": "",
    "appendonly": "yes",
    "appenddirname": AOF_DIRECTORY,
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    # A tail is cut only when it is provably incomplete: see embedded.py.
    "aof-load-truncated": "no",
    # Rewrite when the file has doubled: the disk holds at most about twice the data, and a start
    # reads no more than that. Below 64 MB a start is fast enough to leave the file alone.
    "auto-aof-rewrite-percentage": "100",
    "auto-aof-rewrite-min-size": "64mb",
    "maxmemory-policy": "noeviction",
}


def main(mode: str, directory: str, *server: str) -> int:
    """Take the locks, then leave the supervising to a forked child; return when it is under way."""
    os.chdir(directory)
    os.umask(0o077)
    # Every file is opened, and a running server found, before the first wait: by the end of it the
    # directory may have been deleted, and its server must be ended all the same.
    own, servers_own, life, users, start = map(
        lock_file, (SUPERVISOR_LOCK, SERVER_LOCK, SERVER_LOCK, USERS_LOCK, START_LOCK)
    )
    running = _server_pid() if mode == "adopt" else None
    if not _take(own):
        return BUSY
    if mode == "spawn":
        if not _take(servers_own):
            return BUSY
        _clear_remains()
    if os.fork():
        return 0

    _detach()
    child = None
    if mode == "spawn":
        try:
            child = _spawn(server[0], servers_own)
        except OSError as error:
            _log(f"{REFUSED}{error}")
            return 1
    servers_own.close()  # from here on the server alone keeps its lock
    threading.Thread(target=_leave_with_server, args=(life, child), daemon=True).start()
    watch = _Watch(directory, {USERS_LOCK: users, SERVER_LOCK: life}, child or running)
    threading.Thread(target=watch.run, daemon=True).start()

    while True:
        fcntl.flock(users, fcntl.LOCK_EX)
        # Nobody uses the server, and nobody can begin to until `users` is given back. `stay` is
        # read under the start lock, so that a `stop` either comes before this look or after it.
        fcntl.flock(start, fcntl.LOCK_EX)
        if not Path(STAY).exists():
            break
        fcntl.flock(start, fcntl.LOCK_UN)
        fcntl.flock(users, fcntl.LOCK_UN)
        while Path(STAY).exists():
            time.sleep(WATCH_S)
    _end(child)
    return 0


class _Watch:
    """Kills the server when its directory, its locks or its data are not where they were."""

    def __init__(self, directory: str, locks: dict[str, io.FileIO], server: int | None) -> None:
        self._directory = directory
        self._locks = locks
        # The server leads a process group, to which a process that rewrites its file belongs too.
        self._group = server
        self._newest: tuple[str, os.stat_result] | None = None
        self._changes, woken = os.pipe()
        os.set_blocking(self._changes, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGIO, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._watched = [_report_changes(place) for place in (".", "..")]

    def run(self) -> None:
        """Look at the directory after each change of it, and every ``WATCH_S`` in any case."""
        while not (why := self._loss()):
            self._group = self._group or _server_pid()
            if len(self._watched) < 3 and Path(AOF_DIRECTORY).is_dir():
                self._watched.append(_report_changes(AOF_DIRECTORY))
            select.select([self._changes], [], [], WATCH_S)
            # Changes come in bursts, and a directory beside ours may be a busy one.
            time.sleep(0.005)
            with contextlib.suppress(BlockingIOError):
                os.read(self._changes, 1 << 16)
        _log(f"headwater: killed the server, because {why} while it was in use")
        # Until the thread that waits for the end of the server ends this process.
        while True:
            with contextlib.suppress(OSError):
                if self._group:
                    os.killpg(self._group, signal.SIGKILL)
            time.sleep(0.05)

    def _loss(self) -> str:
        """Return what is lost; '' when all is in place, and when that cannot be seen just now."""
        with contextlib.suppress(OSError, ValueError):
            return self._moved() or self._data_lost()
        return ""

    def _moved(self) -> str:
        there = _stat(Path(self._directory))
        if there is None:
            return f"{self._directory} was removed or moved"
        if not os.path.samestat(there, Path().stat()):
            return f"{self._directory} was replaced"
        for name, file in self._locks.items():
            found = _stat(Path(name))
            if found is None or not os.path.samestat(os.fstat(file.fileno()), found):
                return f"{name} was removed or replaced"
        return ""

    def _data_lost(self) -> str:
        """Return whether the file to which the server appends is not the one that it was."""
        name = newest_increment()
        found = _stat(Path(AOF_DIRECTORY, name)) if name else None
        if name != newest_increment():
            return ""  # The server has just begun another file: look again.
        before = self._newest
        if found is not None:
            self._newest = name, found
            if before is None or before[0] != name or os.path.samestat(found, before[1]):
                return ""
        if before is None:
            return ""
        # The locks are in place, so only this tells the users that their data is gone.
        with contextlib.suppress(FileNotFoundError):
            Path(USERS_LOCK).unlink()
        return f"{AOF_DIRECTORY}/{before[0]} was removed or replaced"


def newest_increment(directory: str | Path = ".") -> str:
    """Return the name of the file that the server appends to; '' before there is one."""
    try:
        text = Path(directory, AOF_DIRECTORY, AOF_MANIFEST).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    # Each row reads: file NAME seq NUMBER type b|h|i
    rows = [row.split() for row in text.splitlines()]
    return max(((int(row[3]), row[1]) for row in rows if row[5:6] == ["i"]), default=(0, ""))[1]


def _stat(path: Path) -> os.stat_result | None:
    """Look at a file; None when it is not there."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _report_changes(directory: str) -> int:
    """Ask for a signal when an entry of a directory changes; not every system has that."""
    watched = -1
    with contextlib.suppress(AttributeError, OSError):
        watched = os.open(directory, os.O_RDONLY)
        changes = fcntl.DN_DELETE | fcntl.DN_RENAME | fcntl.DN_MULTISHOT
        fcntl.fcntl(watched, fcntl.F_NOTIFY, changes)
    return watched


def _server_pid() -> int | None:
    """Return the process that listens on the socket; None when there is none now."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.connect(SOCKET)
        if sys.platform == "darwin":
            return link.getsockopt(0, 2)  # LOCAL_PEERPID
        return int.from_bytes(
            link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder
        )
    return None


def lock_file(path: str | Path) -> io.FileIO:
    """Open a file to lock; closing or dropping it releases the lock."""
    return io.FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def try_lock(file: io.FileIO, kind: int) -> bool:
    """Take a lock if that needs no waiting."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Return whether nobody holds the lock exclusively; creates nothing."""
    try:
        file = io.FileIO(path, "r")
    except FileNotFoundError:
        return True
    with file:
        free = try_lock(file, fcntl.LOCK_SH)
        # Not left to the closing: a child forked by another thread may have the file open too.
        fcntl.flock(file, fcntl.LOCK_UN)
        return free


def _take(lock: io.FileIO) -> bool:
    """Take a lock exclusively; False if it stays taken for longer than a look by `is_free`."""
    for _ in range(50):
        if try_lock(lock, fcntl.LOCK_EX):
            return True
        time.sleep(0.002)
    return False


def _clear_remains() -> None:
    """Remove what a killed server left; the caller holds the server's lock, so none is alive."""
    here = Path()
    for remains in (here / SOCKET, here / PID_FILE, *here.glob("temp-*.aof")):
        remains.unlink(missing_ok=True)
    log = Path(LOG)
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(f"{LOG}.1")


def _log(line: str) -> None:
    """Write to the log, which is standard error; a file made again would disturb who removes it."""
    os.write(2, f"{line}\n".encode())


def _detach() -> None:
    """Detach from the caller's pipes and terminal; errors from here on are in the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _spawn(server: str, servers_own: io.FileIO) -> int:
    """Start the server with its lock as an inherited file, in a process group of its own."""
    _log(f"headwater: starting {server}")
    os.set_inheritable(servers_own.fileno(), True)
    arguments = [server]
    for option, value in SERVER_OPTIONS.items():
        arguments += [f"--{option}", value]
    # The C locale: string order in functions must not depend on who happened to start the server.
    return os.posix_spawn(server, arguments, {**os.environ, "LC_ALL": "C"}, setpgroup=0)


def _leave_with_server(life: io.FileIO, child: int | None) -> None:
    fcntl.flock(life, fcntl.LOCK_SH)
    if child is not None:
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            _log(f"{REFUSED}it ended with exit status {os.WEXITSTATUS(status)}")
    os._exit(0)


def _end(child: int | None) -> None:
    """Shut the server down; the thread that watches its lock ends this process when it is gone."""
    if child is None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(SHUTDOWN_GRACE_S)
            link.connect(SOCKET)
            link.sendall(SHUTDOWN_COMMAND)
            link.recv(1)
        time.sleep(SHUTDOWN_GRACE_S)
        return
    # The child is waited for only when it is gone, so its id belongs to no other process.
    os.kill(child, signal.SIGTERM)
    time.sleep(SHUTDOWN_GRACE_S)
    # Stuck, perhaps in an endless script. All that was acknowledged is on disk.
    os.killpg(child, signal.SIGKILL)
    signal.pause()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
