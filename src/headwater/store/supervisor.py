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

All locks are flock(2): the kernel gives them back however a process ends, so nothing has to be
guessed from process ids or left-over files. Who waits for several takes them in this order.

Promises: there is never more than one server on a directory; a server without users and without
`stay` is shut down cleanly; a supervisor never outlives its server.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
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

# Exit status: another supervisor or server came first. Nothing is wrong; look again.
BUSY = 75

# How a line of the log begins that says that the server itself gave up. It is the last line then:
# a server that was killed, or is told to end, leaves none, and a new start adds others.
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
    "aof-load-truncated": "yes",
    # Rewrite when the file has doubled: the disk holds at most about twice the data, and a start
    # reads no more than that. Below 64 MB a start is quick enough to leave the file alone.
    "auto-aof-rewrite-percentage": "100",
    "auto-aof-rewrite-min-size": "64mb",
    "maxmemory-policy": "noeviction",
}


def main(mode: str, directory: str, *server: str) -> int:
    """Take the locks, then leave the supervising to a forked child; return when it is under way."""
    os.chdir(directory)
    os.umask(0o077)
    # Every file is opened before the first wait: by the end of it the directory may have been
    # deleted, and its server must be ended all the same.
    own, servers_own, life, users, start = map(
        lock_file, (SUPERVISOR_LOCK, SERVER_LOCK, SERVER_LOCK, USERS_LOCK, START_LOCK)
    )
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

    fcntl.flock(users, fcntl.LOCK_EX)
    # Nobody uses the server, and nobody can begin to until `users` is given back. `stay` is read
    # under the start lock, so that a `stop` either comes before this look or finds us gone.
    fcntl.flock(start, fcntl.LOCK_EX)
    if Path(STAY).exists():
        own.close()
    else:
        _end(child)
    return 0


def lock_file(path: str | Path) -> io.FileIO:
    """Open a file to lock; whoever closes or drops it gives the lock back."""
    return io.FileIO(path, "a", opener=lambda name, flags: os.open(name, flags, 0o600))


def try_lock(file: io.FileIO, kind: int) -> bool:
    """Take a lock if that needs no waiting."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Tell whether nobody holds the lock exclusively; creates nothing."""
    try:
        file = io.FileIO(path, "r")
    except FileNotFoundError:
        return True
    with file:
        free = try_lock(file, fcntl.LOCK_SH)
        # Not left to the closing: a child forked by another thread may have the file open too.
        fcntl.flock(file, fcntl.LOCK_UN)
        return free


def cut_zero_tail() -> int:
    """Cut zero bytes off the end of the newest append-only file; return how many.

    A power cut can leave a file longer than what was written to it, filled up with zeros, and the
    server refuses such a file. Cutting is safe: every complete command ends in CR LF, so
    a zero at the end belongs to none, and what was acknowledged had been synced with its length.
    A half-written command before the zeros is then cut by the server itself, and any other damage
    is still refused by it.
    """
    directory = Path(AOF_DIRECTORY)
    try:
        # Each row reads: file NAME seq NUMBER type b|h|i
        rows = [row.split() for row in (directory / AOF_MANIFEST).read_text().splitlines()]
        _, name = max((int(row[3]), row[1]) for row in rows if row[5:6] == ["i"])
        file = (directory / name).open("r+b")
    except (FileNotFoundError, ValueError):
        return 0
    with file:
        size = keep = file.seek(0, os.SEEK_END)
        begin = size
        while keep == begin > 0:
            begin = max(0, keep - (1 << 16))
            file.seek(begin)
            keep = begin + len(file.read(keep - begin).rstrip(b"\0"))
        if keep < size:
            file.truncate(keep)
            os.fsync(file.fileno())
        return size - keep


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
    if cut := cut_zero_tail():
        _log(f"headwater: cut {cut} zero bytes off the end of the append-only file")


def _log(line: str) -> None:
    with Path(LOG).open("a") as log:
        log.write(f"{line}\n")


def _detach() -> None:
    """Let go of the caller's pipes and terminal; what goes wrong from here on is in the log."""
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
            # There is no log in a directory that was deleted, and nobody to read it.
            with contextlib.suppress(FileNotFoundError):
                _log(f"{REFUSED}it ended with exit status {os.WEXITSTATUS(status)}")
    os._exit(0)


def _end(child: int | None) -> None:
    """Shut the server down; the thread that watches its lock ends this process when it is gone."""
    if child is None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(SHUTDOWN_GRACE_S)
            connection.connect(SOCKET)
            connection.sendall(SHUTDOWN_COMMAND)
            connection.recv(1)
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
