"""The functions of pyarrow.compute, which is imported when the first of them is used.

Its import makes hundreds of functions, which takes a tenth of the start of a command; most
commands, and all that write a few messages, need none of them.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
