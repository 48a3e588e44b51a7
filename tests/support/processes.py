"""Processes seen from outside: their children, whether they live, and what they have open.

A process goes on while it is looked at, so a file or a child that ends meanwhile is left out
instead of failing the test that looks.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return whether a process still runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state != "Z"


def children(parent: int) -> dict[int, str]:
    """Return the children of a process that live, with their arguments."""
    words = ["ps", "-ww", "-o", "pid=,stat=,args=", "--ppid", str(parent)]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    found = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid): args for pid, state, args in found if not state.startswith("Z")}


def sockets(pid: int) -> set[str]:
    """Return the inodes of the sockets that a process has open; raises if there is none such."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        # Closed since the directory was listed.
        with contextlib.suppress(FileNotFoundError):
            target = str(entry.readlink())
            if target.startswith("socket:["):
                found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found
