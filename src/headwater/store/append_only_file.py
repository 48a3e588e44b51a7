"""The append-only file of an embedded server: where it ends, and where it is damaged.

A machine that fails in the middle of a write can leave the first part of a command at the end of
the file. That command was never acknowledged, so it may be cut. Any other fault is damage: commands
after it were acknowledged, and cutting there would lose them silently. One changed byte can make
the rest of a file look like one long command that was cut off, so a tail is cut only when it cannot
be that: see ``find_end``.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from headwater.store.supervisor import AOF_DIRECTORY, newest_increment

# How a command begins: its number of arguments, then the length of the first.
_COMMAND = re.compile(rb"\*[1-9]\d{0,8}\r\n\$\d{1,10}\r\n")
_LONGEST_LINE = 32
# Commands without arguments that a server writes into its file. A changed byte in the word EXEC
# would make a whole transaction look incomplete.
_ALONE = {b"MULTI", b"EXEC", b"FLUSHALL", b"FLUSHDB"}


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


def find_end(file: Path) -> End:
    """Return where the whole commands of an append-only file end; the rest is provably incomplete.

    A transaction counts as one command. Raises Damaged when a command cannot be read, and when the
    tail could be the work of a changed byte: it holds the beginning of another command, or it ends
    where an argument ends, so that a smaller length or count would make it whole.
    Costs a pass over the file, about a second for each 50 MB.
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
            _check_tail(text, begin, size)
            return begin if transaction is None else transaction
        if name == b"MULTI":
            if transaction is not None:
                raise Damaged(begin, "a transaction begins inside another one")
            transaction = begin
        elif name == b"EXEC":
            transaction = None
        elif alone and name not in _ALONE:
            raise Damaged(begin, "a command of one word is none that the server writes")
    return size if transaction is None else transaction


def _check_tail(text: mmap.mmap, begin: int, size: int) -> None:
    if other := _COMMAND.search(text, begin + 1):
        raise Damaged(
            begin,
            "the command that begins here seems to continue beyond the end of the file, but "
            f"another one begins at byte {other.start()}",
        )
    if text[size - 2 : size] == b"\r\n":
        raise Damaged(
            begin,
            "the command that begins here lacks its end, although the file ends with a whole "
            "argument; a changed length would look the same",
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
    name = b""
    for place in range(count):
        begin = at
        length, at = _read_number(text, at, size, b"$")
        end = at + length
        if end + 2 > size:
            raise _Incomplete
        if text[end : end + 2] != b"\r\n":
            raise Damaged(begin, "an argument is longer or shorter than its length says")
        if not place:
            name = text[at:end].upper()
        at = end + 2
    return at, name, count == 1


def _read_number(text: mmap.mmap, at: int, size: int, mark: bytes) -> tuple[int, int]:
    """Read a line such as ``*3`` or ``$12``; return the number and where the line ends."""
    if at >= size:
        raise _Incomplete
    end = text.find(b"\r\n", at, at + _LONGEST_LINE)
    if end < 0:
        if size - at >= _LONGEST_LINE or text[at : at + 1] != mark:
            raise Damaged(at, f"there is no {mark.decode()} and a number")
        raise _Incomplete
    digits = text[at + 1 : end]
    if text[at : at + 1] != mark or not digits.isdigit():
        raise Damaged(at, f"there is no {mark.decode()} and a number")
    return int(digits), end + 2


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
        with open(aside, "wb", opener=_private) as copy:
            copy.write(opened.read())
            copy.flush()
            os.fsync(copy.fileno())
        opened.truncate(end.whole)
        os.fsync(opened.fileno())


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
