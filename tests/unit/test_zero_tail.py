"""Zeros after the last command are cut, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.store import embedded, supervisor

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
