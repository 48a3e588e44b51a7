"""Notices that files of an application changed, by their times; nothing is installed for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path


class WatchedFiles:
    """Files, and when each was changed last."""

    def __init__(self) -> None:
        self._times: dict[str, int | None] = {}

    def watch(self, files: Iterable[str], since_ns: int) -> None:
        """Watch these, too, which a process that began at that time has read since.

        What was changed meanwhile is noticed next: the process may have read it as it was before.
        """
        now_ns = time.time_ns()
        for file in files:
            at = _changed_at(file)
            self._times[file] = None if at is not None and since_ns <= at <= now_ns else at

    def changed(self) -> str | None:
        """Return a file that was changed since it was looked at last, or None."""
        found = None
        for file, before in self._times.items():
            now = _changed_at(file)
            if now != before:
                self._times[file] = now
                found = found or file
        return found


def _changed_at(file: str) -> int | None:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return None  # an editor may be about to replace it
