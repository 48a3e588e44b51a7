"""How many messages a second are written to each stream, out of the samples that all share."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.metrics.sweeps import StoreSample, StoreWatch

# A rate is the mean since one of the last two marks, which are this far apart at least.
_MARK_MS: Final = 5000
# A sample is looked at for this long, and a large store is sampled less often.
_OLD_S: Final = 10.0
_LEAST_MS: Final = 500


class _Mark(NamedTuple):
    """Where streams ended at a moment."""

    at_ms: int
    lasts: dict[str, int]


class StreamRates:
    """Rates of the last five to ten seconds; asking for one costs the store nothing."""

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._marks: list[_Mark] = []
        self._newest = _Mark(0, {})
        watch.follow(self._note)

    def of(self, stream: str) -> float | None:
        """Return the rate of a stream; None if it is not known, or no longer.

        The store is sampled every five seconds at least from now on; nobody waits for that.
        """
        self._watch.ask(_MARK_MS / 1000)
        sample, newest = self._watch.latest, self._newest
        if self._watch.clock() - sample.at > _OLD_S + 2 * sample.took_s:
            return None
        last = newest.lasts.get(stream)
        for mark in self._marks:
            before = mark.lasts.get(stream)
            span_ms = newest.at_ms - mark.at_ms
            if last is not None and before is not None and span_ms >= _LEAST_MS:
                # A stream may have been deleted and begun again.
                return max(last - before, 0) * 1000 / span_ms
        return None

    async def _note(self, sample: StoreSample) -> None:
        if sample.missing is not None:
            return
        mark = _Mark(sample.now_ms, {stream.name: stream.last for stream in sample.streams})
        # Nobody asked for a while: a mean of all that time would not be a rate of now.
        if mark.at_ms - self._newest.at_ms > 1000 * _OLD_S + 3000 * sample.took_s:
            self._marks.clear()
        self._newest = mark
        if not self._marks or mark.at_ms - self._marks[-1].at_ms >= _MARK_MS:
            self._marks = [*self._marks[-1:], mark]
