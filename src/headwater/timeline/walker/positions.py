"""The progress of a walk: the cursor of each instance's scan, kept in a file if one is given.

A cursor is valid for one process of a server only, since the order of keys is its own; the scan of
a server that was restarted begins from the start. All of them are valid for one layout of one farm
only: what was compared on some clusters is not yet compared on others.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import InvalidInput
from headwater.timeline.layout import FarmLayout
from headwater.timeline.records import Repaired

END: Final = -1


class ScanPosition(msgspec.Struct):
    """The cursor at which the scan of one instance continues; END when it is complete."""

    generation: str
    cursor: int = 0


class WalkPositions(msgspec.Struct):
    """The positions of a round, by cluster and instance, and what it has done so far.

    ``layout`` is that of the walked farm, without passwords.
    """

    layout: FarmLayout | None = None
    places: dict[str, ScanPosition] = msgspec.field(default_factory=dict)
    figures: list[int] = msgspec.field(default_factory=lambda: list(Repaired()))


class WalkStateFile:
    """Keeps positions in a file, which is replaced as a whole; without a file it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self, layout: FarmLayout) -> WalkPositions:
        """Return the last positions of a walk by this layout, or those of the beginning.

        Raises InvalidInput for a file that holds something else.
        """
        beginning = WalkPositions(layout.safe)
        if self._path is None or not self._path.exists():
            return beginning
        try:
            noted = msgspec.json.decode(self._path.read_bytes(), type=WalkPositions)
        except msgspec.DecodeError:
            raise InvalidInput(
                f"{self._path} is not the state of a walk; name another file, or remove it"
            ) from None
        return noted if noted.layout == beginning.layout else beginning

    def note(self, positions: WalkPositions) -> None:
        """Write positions atomically: a crash leaves the old ones or the new."""
        if self._path is not None:
            new = self._path.with_name(f"{self._path.name}.new")
            try:
                with new.open("wb") as file:
                    file.write(msgspec.json.encode(positions))
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def forget(self) -> None:
        """Remove the file, so that the next walk begins from the start."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
