"""Work at a rate: a bounded amount in each step, and a pause after it."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.inputs import check_int
from headwater.store.call import Operation, YieldTurn

MAX_RATE: Final = 1_000_000
_STEPS_PER_S: Final = 5


class Pace(NamedTuple):
    """How many per second at most; None is no limit."""

    per_s: int | None = None

    def check(self) -> Pace:
        """Return itself; raises InvalidInput for an invalid rate."""
        if self.per_s is not None:
            check_int(self.per_s, "rate_per_s", 1, MAX_RATE)
        return self

    def step(self, most: int) -> int:
        """Return how many are done in one step, ``most`` of them."""
        return most if self.per_s is None else min(-(-self.per_s // _STEPS_PER_S), most)

    def rest_s(self, done: int) -> float:
        """Return how many seconds to wait after a number was done."""
        return 0.0 if self.per_s is None else done / self.per_s

    def rest(self, done: int) -> Operation[None]:
        """Wait as long as that."""
        if self.per_s is not None:
            yield YieldTurn(self.rest_s(done))
