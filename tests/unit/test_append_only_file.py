"""Only a command that is provably incomplete counts as the end of an append-only file."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store import embedded, supervisor
from headwater.store.embedded import Damaged, cut, find_end


def spell(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%s\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


MULTI, EXEC = spell(b"MULTI"), spell(b"EXEC")
FIRST = spell(b"SET", b"one", b"1")
ENTRY = spell(b"XADD", b"hw:s:{rides}:tail", b"0-1", b"tag", b"ride-1", b"value", b"{}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.incr.aof"


@pytest.mark.parametrize(
    "text", [b"", FIRST, FIRST * 3, MULTI + FIRST + EXEC, b"#TS:1\r\n" + FIRST]
)
def test_a_whole_file_ends_where_it_ends(file: Path, text: bytes) -> None:
    file.write_bytes(text)
    assert find_end(file) == (len(text), len(text))


LONG = spell(b"SET", b"page", b"x" * 234)
LINES = spell(b"SET", b"lines", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
PAIRS = [b"HSET", b"rides", *(b"%d" % number for number in range(24))]
QUOTED = spell(b"SET", b"log", 3 * FIRST + 100 * b".")
WRITE = MULTI + ENTRY + spell(b"HSET", b"hw:s:{rides}", b"last", b"1", b"time", b"5") + EXEC
BATCH = MULTI + LINES + spell(*PAIRS) + spell(b"UNLINK", b"a", b"b") + QUOTED + EXEC
LIBRARY = MULTI + spell(b"FUNCTION", b"LOAD", b"REPLACE", b"#!lua\r\n-- *1\r\n" * 40) + EXEC


LAST = {
    "short": FIRST,
    "long": LONG,
    "entry": spell(b"XADD", b"hw:s:{rides}:tail", b"0-1", b"k", b"ride-1"),
    "empty": spell(b"SET", b"empty", b""),
    "select": spell(b"SELECT", b"0"),
    "quoted": QUOTED,
    "multi": MULTI + EXEC,
    "write": WRITE,
    "batch": BATCH,
    "library": LIBRARY,
}


def refused(file: Path, before: bytes, last: bytes) -> list[bytes]:
    """Tear the last command everywhere; return what is left of it where it is not cut."""
    file.write_bytes(before + last)
    found = []
    for kept in range(len(last) - 1, 0, -1):
        os.truncate(file, len(before) + kept)
        try:
            end = find_end(file)
        except Damaged:
            found.append(last[:kept])
        else:
            assert end == (len(before), len(before) + kept)
    return found[::-1]


@pytest.mark.parametrize("before", [b"", FIRST, WRITE], ids=["first", "command", "transaction"])
@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_a_last_command_that_is_torn_anywhere_is_incomplete(
    file: Path, before: bytes, last: bytes
) -> None:
    assert refused(file, before, last) == []


def test_a_tail_that_would_be_whole_with_another_number_is_refused(file: Path) -> None:
    """Only where one changed number makes the same bytes of a command that was acknowledged."""
    # A count of two digits was never one of one digit, and HSET has an even number of words.
    pairs = [spell(*PAIRS[:n]).replace(b"*%d" % n, b"*26") for n in range(10, 26, 2)]
    assert refused(file, WRITE, spell(*PAIRS)) == pairs
    unlink = spell(b"UNLINK", b"a", b"b")
    assert refused(file, WRITE, unlink) == [spell(b"UNLINK", b"a").replace(b"*2", b"*3")]
    # A text that is torn behind one of its lines could be that text with a changed length.
    ends = (b"1.1\r\n", b": a\r\n", b"\r\n\r\n")
    lines = [LINES[: LINES.index(end) + len(end)] for end in ends]
    assert refused(file, WRITE, LINES) == lines


@pytest.mark.parametrize(
    "last",
    [ENTRY, LINES, WRITE, MULTI + spell(b"SET", b"one", b"1" * 90) + EXEC],
    ids=["entry", "lines", "write", "swallowed"],
)
def test_another_number_in_whole_commands_never_cuts_them(file: Path, last: bytes) -> None:
    text = ENTRY + last
    numbers = [match.span(1) for match in re.finditer(rb"[*$](\d+)\r\n", text)]
    for begin, end in numbers:
        digits = end - begin
        for number in range(10**digits):
            changed = text[:begin] + b"%0*d" % (digits, number) + text[end:]
            file.write_bytes(changed)
            with contextlib.suppress(Damaged):
                assert find_end(file).whole == len(text), (begin, number)


@given(st.data())
def test_one_changed_byte_never_cuts_a_whole_command(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    commands = data.draw(
        st.lists(st.sampled_from([FIRST, ENTRY, MULTI + ENTRY + EXEC]), min_size=1)
    )
    text = bytearray(b"".join(commands))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    file = tmp_path_factory.mktemp("aof") / "file"
    file.write_bytes(text)
    try:
        end = find_end(file)
    except Damaged:
        pass
    else:
        # The change is inside an argument: only a checksum of the message can notice it.
        assert end.whole == len(text)


def test_a_cut_keeps_what_it_takes_away(file: Path, tmp_path: Path) -> None:
    file.write_bytes(FIRST + ENTRY[:11])
    aside = tmp_path / "aside"
    cut(file, find_end(file), aside)
    assert file.read_bytes() == FIRST
    assert aside.read_bytes() == ENTRY[:11]
    assert aside.stat().st_mode & 0o777 == 0o600


# ── Zeros after the last command are cut, and nothing else is touched ────────────────────────────


BLOCK = 1 << 16
COMMAND = b"*1\r\n$4\r\nPING\r\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an append-only directory with two increments, of which 10 is newer than 9."""
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / supervisor.AOF_DIRECTORY
    directory.mkdir()
    (directory / supervisor.AOF_MANIFEST).write_text(
        "file base seq 11 type b\nfile nine seq 9 type i\nfile ten seq 10 type i\n"
    )
    for name in ("base", "nine", "ten"):
        (directory / name).write_bytes(COMMAND + b"\0\0")
    return directory


@pytest.mark.parametrize("zeros", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize(
    "kept",
    [b"", COMMAND, COMMAND[:-1], b"\0\r\n", (COMMAND * BLOCK)[: BLOCK - 1] + b"\n"],
    ids=["nothing", "command", "half a command", "zero inside", "a whole block"],
)
def test_exactly_the_zeros_at_the_end_are_cut(files: Path, kept: bytes, zeros: int) -> None:
    (files / "ten").write_bytes(kept + b"\0" * zeros)
    assert embedded.cut_zero_tail(files.parent) == zeros
    assert (files / "ten").read_bytes() == kept


def test_only_the_newest_increment_is_cut(files: Path) -> None:
    assert embedded.cut_zero_tail(files.parent) == 2
    assert (files / "ten").read_bytes() == COMMAND
    assert (files / "nine").read_bytes() == COMMAND + b"\0\0"
    assert (files / "base").read_bytes() == COMMAND + b"\0\0"


@pytest.mark.parametrize("missing", [supervisor.AOF_MANIFEST, "ten"])
def test_what_is_not_there_is_left_to_the_server(files: Path, missing: str) -> None:
    (files / missing).unlink()
    assert embedded.cut_zero_tail(files.parent) == 0
