"""The layout of a farm, which every instance knows while it is moved, and names of instances.

copying     writes go to the old clusters and to the new ones, reads to the old; existing
                timelines are copied
    switching   writes go to both, reads to the new
    settled     the old clusters are no longer used

Each change raises the epoch, and an instance refuses calls of an older epoch: so no program writes
by an old layout, however long it was suspended. A farm that was never moved has no layout, and its
epoch is 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.store.directory import default_directory
from headwater.store.url import resolve

# ── Naming ────────────────────────────────────────────────────────────────────────────────────────
# The names of instances and farms: the URL that a name stands for, and what may be shown of it.
#
# A farm's text holds the passwords of its instances. Whatever is shown, logged or stored in a file
# is what ``safe_farm`` returns.


WRITE_ONLY: Final = "writeonly"


def instance_url(text: str) -> str:
    """Return the URL of an instance, which may be named by host:port."""
    return text if "://" in text or text.startswith("embedded:") else f"redis://{text}"


def safe_farm(farm: str) -> str:
    """Return a farm's text without users and passwords; what is not an instance becomes "?"."""
    return re.sub("[^;,]+", lambda word: _safe(word[0]), "".join(farm.split()))


def _safe(word: str) -> str:
    if word.lower() == WRITE_ONLY:
        return WRITE_ONLY
    try:
        return resolve(instance_url(word), default_directory()).safe
    except InvalidInput:
        return "?"


# ── Layout ────────────────────────────────────────────────────────────────────────────────────────


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
