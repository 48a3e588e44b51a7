"""Only a command that is provably incomplete counts as the end of an append-only file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store.append_only_file import Damaged, cut, find_end


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


@pytest.mark.parametrize("before", [b"", FIRST, MULTI + FIRST + EXEC])
def test_a_command_cut_inside_a_word_is_incomplete(file: Path, before: bytes) -> None:
    for kept in range(1, len(ENTRY)):
        tail = ENTRY[:kept]
        file.write_bytes(before + tail)
        if tail.endswith(b"\r\n"):
            with pytest.raises(Damaged, match="a changed length would look the same"):
                find_end(file)
        else:
            assert find_end(file) == (len(before), len(before) + kept)


def test_a_transaction_without_its_end_is_incomplete_as_a_whole(file: Path) -> None:
    for tail in (MULTI + ENTRY, MULTI + ENTRY + ENTRY[:9], MULTI):
        file.write_bytes(FIRST + tail)
        assert find_end(file).whole == len(FIRST)


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
