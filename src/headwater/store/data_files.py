"""Which files hold the data of an embedded server, and whether they are all still there.

The server begins as an empty store when its manifest is missing, and acknowledges writes that it
then appends to a file of the old one. So the data directory has a note of the file that was
appended to last, and a start compares: a store that once had data never starts empty by itself.
What is noticed is a file that is gone or empty, not one that was cut between two commands.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from headwater.errors import EmbeddedServerFailed
from headwater.store.supervisor import AOF_DIRECTORY, newest_increment

# One line: the name of the file that was appended to last, and whether anything was in it.
NOTE = "newest-data"
_INCREMENT = re.compile(r"\.(\d+)\.incr\.aof$")


def note_data(directory: Path) -> None:
    """Note which file the server appends to; nothing when that is noted already."""
    with suppress(OSError, ValueError):
        name = newest_increment(directory)
        if not name:
            return
        size = (directory / AOF_DIRECTORY / name).stat().st_size
        # A file that once held data is never noted as empty again.
        if _read_note(directory) in ((name, True), (name, bool(size))):
            return
        note = directory / NOTE
        fresh = note.with_name(f"{NOTE}.{os.getpid()}")
        with open(fresh, "w", opener=_private) as file:
            file.write(f"{name} {'written' if size else 'empty'}\n")
        fresh.replace(note)


def check_data(directory: Path) -> None:
    """Raise EmbeddedServerFailed when data that was here is gone; no server runs now."""
    try:
        newest = newest_increment(directory)
    except (ValueError, IndexError):
        return  # the server refuses a manifest that it cannot read
    files = {file.name: file for file in _increments(directory)}
    left = [name for name, file in files.items() if _comes_after(name, newest) and _size(file)]
    if left:
        raise _gone(directory, f"{left[0]} holds data, and the manifest beside it does not name it")
    noted, written = _read_note(directory)
    if not noted:
        return
    if not newest or _number(newest) < _number(noted):
        raise _gone(directory, f"{noted} is gone, or the manifest beside it no longer names it")
    if newest == noted and written and not (newest in files and _size(files[newest])):
        raise _gone(directory, f"{noted} held data, and is empty or gone now")


def _gone(directory: Path, what: str) -> EmbeddedServerFailed:
    return EmbeddedServerFailed(
        f"data of the store in {directory} is missing: in {AOF_DIRECTORY}, {what}. Nothing was "
        "changed. Restore the directory from a backup; or, to begin with an empty store, remove "
        "the whole directory"
    )


def _increments(directory: Path) -> list[Path]:
    folder = directory / AOF_DIRECTORY
    return list(folder.glob("*.incr.aof")) if folder.is_dir() else []


def _comes_after(name: str, newest: str) -> bool:
    return name != newest and _number(name) >= _number(newest)


def _number(name: str) -> int:
    found = _INCREMENT.search(name)
    return int(found[1]) if found else 0


def _size(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size
    return 0


def _read_note(directory: Path) -> tuple[str, bool]:
    with suppress(OSError, ValueError):
        name, state = (directory / NOTE).read_text().split()
        return name, state == "written"
    return "", False


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, 0o600)
