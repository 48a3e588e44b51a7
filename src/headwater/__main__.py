"""The program `headwater`: it ends without a traceback on Ctrl-C and on a full disk.

It runs with any of its standard streams closed: nothing is read there, and what is written is lost.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

# What a write to standard output raises when there is no room for it.
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
INTERRUPTED = 130


def main() -> None:
    """Run the command that the arguments of this process name, and exit with its code."""
    _open_closed_streams()
    try:
        # Imported here, so that Ctrl-C is answered while it loads.
        from headwater.cli.program import narrowed

        narrowed(sys.argv[1:])()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        # What is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = f"the output could not be written ({error.strerror})"
        sys.exit(f"error: {why}; make room, or write it to another place")


def _open_closed_streams() -> None:
    """Put the null device in place of closed streams, in order: each gets the number it had."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  it stays open


if __name__ == "__main__":
    main()
