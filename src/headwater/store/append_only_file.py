"""The append-only file of an embedded server: where it ends, and where it is damaged.

A machine that fails in the middle of a write can leave the first part of a command at the end of
the file. That command was never acknowledged, so it may be cut. Any other fault is damage: commands
after it were acknowledged, and cutting there would lose them silently. One changed number can make
the rest of a file look like one long command that was cut off, so a tail is cut only when it cannot
be that: see ``find_end``.
"""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from headwater.store.supervisor import AOF_DIRECTORY, newest_increment

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
        with open(aside, "wb", opener=_private) as copy:
            copy.write(opened.read())
            copy.flush()
            os.fsync(copy.fileno())
        opened.truncate(end.whole)
        os.fsync(opened.fileno())


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
