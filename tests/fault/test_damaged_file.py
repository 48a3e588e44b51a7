"""A store whose append-only file was damaged at rest refuses to start; it never drops the rest."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.errors import EmbeddedServerFailed
from headwater.store import embedded, supervisor

pytestmark = pytest.mark.fault
FLIPS = 24 * int(os.environ.get("HEADWATER_LONG", "1"))
MESSAGES = 12
# Counts of arguments and their lengths, by which the server finds its way through the file.
FRAME = re.compile(rb"[*$]\d+\r\n")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A data directory at rest, with messages written one by one."""
    directory = tmp_path / "data"
    with headwater.connect(f"embedded://{directory}") as hw:
        for number in range(MESSAGES):
            hw.stream("rides").write(f"ride-{number}", b"x" * 40)
    embedded.stop(directory)
    return directory


def test_a_changed_length_or_count_never_drops_acknowledged_messages(stored: Path) -> None:
    chance = random.Random(os.environ.get("HEADWATER_SEED", "17"))
    text = _newest(stored).read_bytes()
    frames = [place for found in FRAME.finditer(text) for place in range(*found.span())]
    refused = 0
    for number in range(FLIPS):
        copy = stored.with_name(f"copy-{number}")
        shutil.copytree(stored, copy)
        # Half of the flips are near the end, where a longer length looks like a cut-off command.
        place = chance.choice(frames[-60:] if number % 2 else frames)
        damaged = bytearray(text)
        damaged[place] ^= 1 << chance.randrange(8)
        _newest(copy).write_bytes(damaged)
        try:
            with headwater.connect(f"embedded://{copy}") as hw:
                assert hw.stream("rides").info().last == MESSAGES, f"bit flipped in byte {place}"
        except EmbeddedServerFailed:
            refused += 1
            assert _newest(copy).read_bytes() == damaged, "what is damaged must not be changed"
        embedded.stop(copy, now=True)
        shutil.rmtree(copy)
    assert refused > FLIPS / 2


def lose_manifest(data: Path) -> None:
    (data / supervisor.AOF_MANIFEST).unlink()


def lose_row_of_manifest(data: Path) -> None:
    manifest = data / supervisor.AOF_MANIFEST
    rows = [row for row in manifest.read_text().splitlines() if "incr" not in row]
    manifest.write_text("".join(f"{row}\n" for row in rows))


def lose_contents(data: Path) -> None:
    for file in data.glob("*.incr.aof"):
        file.write_bytes(b"")


def lose_increment(data: Path) -> None:
    for file in data.glob("*.incr.aof"):
        file.unlink()


def lose_all_files(data: Path) -> None:
    shutil.rmtree(data)


@pytest.mark.parametrize(
    "lose", [lose_manifest, lose_row_of_manifest, lose_contents, lose_increment, lose_all_files]
)
def test_a_store_that_had_data_never_comes_back_empty(
    stored: Path, lose: Callable[[Path], None]
) -> None:
    data = stored / supervisor.AOF_DIRECTORY
    lose(data)
    before = _files(stored)
    for _ in range(2):
        with pytest.raises(EmbeddedServerFailed, match="Nothing was changed"):
            headwater.connect(f"embedded://{stored}")
    assert _files(stored) == before
    shutil.rmtree(stored)
    with headwater.connect(f"embedded://{stored}") as hw:
        assert hw.streams() == []


def _files(directory: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in directory.rglob("*.aof*") if file.is_file()}


def _newest(directory: Path) -> Path:
    found = embedded.newest_file(directory)
    assert found is not None
    return found
