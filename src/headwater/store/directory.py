"""The data directory of an embedded store: its owner, its socket, its locks, its files."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from headwater.errors import EmbeddedServerFailed, FormatTooNew, InvalidInput
from headwater.store import supervisor
from headwater.store.supervisor import AOF_DIRECTORY, newest_increment

# ── Directory ─────────────────────────────────────────────────────────────────────────────────────


DIRECTORY_VARIABLE = "HEADWATER_DIR"
# Which locks and files there are, and what they mean: a number, in a file.
FORMAT = 1
FORMAT_FILE = "format"
# sun_path holds 104 bytes on macOS and 108 on Linux, the closing zero included.
_LONGEST_SOCKET_PATH = 103


def default_directory() -> Path:
    """Return `$HEADWATER_DIR`, or `.headwater` in the current directory.

    It is relative when the current directory was removed, which only an embedded store minds.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE) or ".headwater"
    try:
        return absolute(directory)
    except EmbeddedServerFailed:
        return Path(directory)


def absolute(directory: Path | str) -> Path:
    """Accept the name of a directory.

    Raises InvalidInput, and EmbeddedServerFailed when it is relative to one that was removed.
    """
    if not str(directory) or "\0" in str(directory):
        raise InvalidInput(f"{str(directory)!r} cannot be a data directory; name a directory")
    try:
        return Path(directory).absolute()
    except FileNotFoundError:
        raise EmbeddedServerFailed(
            f"cannot keep an embedded store in {directory}: the current directory was removed; "
            f"change to another, or name a directory from / on, in the URL or by "
            f"${DIRECTORY_VARIABLE}"
        ) from None


@contextlib.contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Translate a refusal of the operating system into our error."""
    try:
        yield
    except OSError as error:
        raise EmbeddedServerFailed(
            f"cannot keep an embedded store in {directory}: {error.strerror or error}"
            f"{f' ({error.filename})' if error.filename else ''}; choose another directory on "
            f"a local disk, in the URL or by ${DIRECTORY_VARIABLE}"
        ) from error


def prepare(directory: Path) -> None:
    """Create the directory, or make sure that it is ours and private."""
    with contextlib.suppress(FileExistsError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
    found = directory.stat()
    cure = f"choose another directory, in the URL or by ${DIRECTORY_VARIABLE}"
    if not stat.S_ISDIR(found.st_mode):
        raise EmbeddedServerFailed(f"{directory} is not a directory; {cure}")
    if found.st_uid != os.geteuid():
        raise EmbeddedServerFailed(
            f"{directory} belongs to user {found.st_uid}, and an embedded store is private to its "
            f"owner; run as that user, or {cure}"
        )
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise EmbeddedServerFailed(f"{directory} cannot be written; {cure}")
    if found.st_mode & 0o077:
        names = {entry.name for entry in directory.iterdir()}
        if not names or supervisor.USERS_LOCK in names:
            directory.chmod(0o700)
        elif found.st_mode & 0o022:
            # It is used for other things, so its mode is not ours to change. Our files in it are
            # private, but users that may write to the directory could replace them.
            raise EmbeddedServerFailed(
                f"{directory} holds other files and others may write to it; chmod 700 it, or {cure}"
            )


def check_format(directory: Path) -> None:
    """Raise FormatTooNew for a directory in the format of a newer release.

    Without the file it is of the first format; a file that holds no number is not ours.
    """
    try:
        found = int((directory / FORMAT_FILE).read_text("ascii"))
    except (FileNotFoundError, ValueError):
        return
    if found > FORMAT:
        raise FormatTooNew(f"the data directory {directory}", found, FORMAT)


def socket_path(directory: Path) -> str:
    """Return a path to the socket that is short enough to connect to.

    When the directory's own path is too long, that is by way of a symbolic link in the temporary
    directory. The link must be ours, so that nobody can lead us to another server. Raises
    EmbeddedServerFailed when it cannot be made.
    """
    link = _socket_link(directory)
    if link is None:
        return str(directory / supervisor.SOCKET)
    if not _is_own_link(link, directory):
        # A name of its own, then a rename: others never see the link missing or half made.
        fresh = link.with_name(f"{link.name}-{os.urandom(4).hex()}")
        try:
            fresh.symlink_to(directory)
            fresh.replace(link)
        except OSError as error:
            raise EmbeddedServerFailed(
                f"the path {directory} is too long for a socket, and no link to it can be made in "
                f"{link.parent}: {error.strerror}; set $TMPDIR to a directory that can be written, "
                f"or choose a shorter path, in the URL or by ${DIRECTORY_VARIABLE}"
            ) from error
    return str(link / supervisor.SOCKET)


def remove_socket_link(directory: Path) -> None:
    """Remove the link to a directory that nobody uses any more, if it has one."""
    link = _socket_link(directory)
    if link is not None and _is_own_link(link, directory):
        link.unlink(missing_ok=True)


def _socket_link(directory: Path) -> Path | None:
    """Return where the link belongs; None for a directory that needs none."""
    if _is_short(directory):
        return None
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    name = f"hw-{os.geteuid()}-{digest}"
    link = Path(os.environ.get("TMPDIR") or "/tmp", name)
    return link if _is_short(link) else Path("/tmp", name)


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder / supervisor.SOCKET)) <= _LONGEST_SOCKET_PATH


def _is_own_link(link: Path, target: Path) -> bool:
    try:
        return link.lstat().st_uid == os.geteuid() and link.readlink() == target
    except OSError:
        return False


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file alone."""
    with supervisor.lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Unlocked, not only closed: a child forked meanwhile by another thread has it open too.
            fcntl.flock(file, fcntl.LOCK_UN)


def is_at(file: io.FileIO, path: Path) -> bool:
    """Return whether an open file is the one that the path leads to."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def take_hold(directory: Path) -> io.FileIO:
    """Take the users' lock, waiting while a supervisor ends the server."""
    path = directory / supervisor.USERS_LOCK
    while True:
        hold = supervisor.lock_file(path)
        try:
            fcntl.flock(hold, fcntl.LOCK_SH)
            if is_at(hold, path):
                return hold
        except BaseException:
            hold.close()
            raise
        hold.close()


def check_lockable(directory: Path) -> None:
    """Refuse a directory whose locks do not exclude others; the caller holds the start lock.

    Raises EmbeddedServerFailed: for a file system that ignores locks, as some network ones do, and
    for a copy made of hard links, which shares its locks and its data with the original.
    """
    with supervisor.lock_file(directory / supervisor.START_LOCK) as second:
        if supervisor.try_lock(second, fcntl.LOCK_EX):
            raise EmbeddedServerFailed(
                f"the file system of {directory} does not keep locks, so that two servers could "
                f"run on one store; choose a directory on a local disk, in the URL or by "
                f"${DIRECTORY_VARIABLE}"
            )
        if os.fstat(second.fileno()).st_nlink > 1:
            raise EmbeddedServerFailed(
                f"{directory} shares its files with another directory by hard links, so that both "
                "would be one store; copy it with `cp -r` instead"
            )


# ── Data files ────────────────────────────────────────────────────────────────────────────────────
# Which files hold the data of an embedded server, and whether they are all still there.
#
# The server begins as an empty store when its manifest is missing, and acknowledges writes that it
# then appends to a file of the old one. So the data directory has a note of the file that was
# appended to last, and a start compares: a store that once had data never starts empty by itself.
# What is noticed is a file that is gone or empty, not one that was cut between two commands.


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
        with open(fresh, "w", opener=private) as file:
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


def private(name: str, flags: int) -> int:
    """Open a file that, if it is new, only its owner may read: an opener."""
    return os.open(name, flags, 0o600)
