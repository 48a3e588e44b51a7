"""How a scrub of any kind is paced, stopped and reported: of a store, an archive or a farm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.store.scrubbing import Defect, Kind, ScrubLedger

# A request to stop is noticed within this time.
PAUSE_S: Final = 0.1
# How often progress is reported while one object is read.
TELL_S: Final = 0.2


class ScrubProgress(NamedTuple):
    """How far a scrub is: which object is next, and what was seen before it."""

    kind: Kind
    name: str
    objects: int
    bytes: int
    defects: int


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """What a scrub has seen.

    ``more`` defects were only counted. ``unsettled`` names objects that changed so fast that not
    all of their counts could be compared. ``complete`` is False when it was stopped.
    """

    objects: int
    bytes: int
    defects: tuple[Defect, ...]
    more: int
    unsettled: tuple[str, ...]
    complete: bool


class ScrubPace:
    """The rate, the progress and the end of a scrub, by what its ledger has seen."""

    def __init__(
        self,
        rate_mb_s: float | None,
        progress: Callable[[ScrubProgress], object] | None,
        stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        if rate_mb_s is not None and not rate_mb_s > 0:
            raise InvalidInput(f"rate_mb_s must be more than 0, not {rate_mb_s!r}")
        self._rate = None if rate_mb_s is None else rate_mb_s * 1_000_000
        self._progress, self._stop = progress, stop
        self._clock, self._began = clock, clock()
        self._told = self._began
        self._at: tuple[Kind, str] = ("store", "")
        self.ledger = ScrubLedger()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop is not None and self._stop()

    def begin(self, kind: Kind, name: str) -> None:
        """Report which object is next."""
        self._at = kind, name
        self._tell()

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait, until the next step keeps to the rate."""
        if self._progress is not None and self._clock() - self._told > TELL_S:
            self._tell()
        while self._rate is not None and not self.stopped:
            early = self.ledger.bytes / self._rate - (self._clock() - self._began)
            if early <= 0:
                return
            yield min(early, PAUSE_S)

    def _tell(self) -> None:
        self._told = self._clock()
        if self._progress is not None:
            seen = self.ledger
            defects = len(seen.defects) + seen.more
            self._progress(ScrubProgress(*self._at, seen.objects, seen.bytes, defects))

    def report(self, *, complete: bool) -> ScrubReport:
        """Return what was seen."""
        seen = self.ledger
        return ScrubReport(
            objects=seen.objects,
            bytes=seen.bytes,
            defects=tuple(seen.defects),
            more=seen.more,
            unsettled=tuple(seen.unsettled),
            complete=complete,
        )
