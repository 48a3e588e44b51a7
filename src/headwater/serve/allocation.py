"""Memory that requests have freed stays with a server process, so that the next ones find it.

glibc gives large blocks back to the kernel as soon as they are free. A request with a large body
would have all its pages made and cleared again, which takes as long as to read the body.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# Larger blocks are the kernel's as before, and go back to it one by one.
_HEAP_BLOCK_BYTES: Final = 2 << 20
# So much free memory stays at the end of the heap.
_KEPT_BYTES: Final = 8 << 20
# Options of mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Let this process keep some MiB of freed memory.

    This does nothing if the C library has no such setting, or if it was set when the process was
    started.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, _HEAP_BLOCK_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
