"""Scripts in place of programs that Spark starts, installed once for each user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path


def install_wrapper(program: str, script: str) -> Path | None:
    """Install a script as ``bin/<program>`` of a directory of its own; returns its path.

    None when no directory can be written.
    """
    name = f"headwater-{program}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for folder in _places():
        wrapper = folder / name / "bin" / program
        try:
            _install(wrapper, script)
        except OSError:
            continue
        return wrapper
    return None


def _places() -> Iterator[Path]:
    """Return where a wrapper may be installed: the user's cache, else a place of this process."""
    named = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):
        yield Path(named) if named else Path.home() / ".cache"
    yield _own_directory()


@cache
def _own_directory() -> Path:
    """Return a new directory, the same for all wrappers of this process."""
    return Path(tempfile.mkdtemp(prefix="headwater-"))


def _install(wrapper: Path, script: str) -> None:
    """Install the wrapper atomically: other processes may start it at this moment."""
    if wrapper.is_file() and os.access(wrapper, os.X_OK) and wrapper.read_text() == script:
        return
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=wrapper.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(draft).chmod(0o755)
        Path(draft).replace(wrapper)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
