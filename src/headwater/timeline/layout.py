"""The layout of a farm, which every instance knows while the farm is moved to other instances.

    copying     writes go to the old clusters and to the new ones, reads to the old; existing
                timelines are copied
    switching   writes go to both, reads to the new
    settled     the old clusters are no longer used

Each change raises the epoch, and an instance refuses calls of an older epoch: so no program writes
by an old layout, however long it was suspended. A farm that was never moved has no layout, and its
epoch is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.timeline.naming import safe_farm

LAYOUT_KEY: Final = b"hw:{timelines}"
COPYING: Final = "copying"
SWITCHING: Final = "switching"
SETTLED: Final = "settled"


class FarmLayout(NamedTuple):
    """A layout: ``old`` and ``new`` are farms as Farm.open takes them."""

    epoch: int
    phase: str
    old: str
    new: str

    @property
    def safe(self) -> FarmLayout:
        """The same without passwords, to be shown or stored in a file."""
        return self._replace(old=safe_farm(self.old), new=safe_farm(self.new))

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.safe._asdict().items())
        return f"FarmLayout({shown})"


def read_layout(fields: Sequence[bytes | None]) -> FarmLayout | None:
    """Return the layout that an instance answered; None when it knows of none."""
    if fields[0] is None:
        return None
    phase, old, new = ((field or b"").decode() for field in fields[1:])
    return FarmLayout(int(fields[0]), phase, old, new)
