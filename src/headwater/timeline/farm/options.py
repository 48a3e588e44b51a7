"""The options of a farm, how their texts are read, and what a farm reports of itself."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias, TypeVar

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.inputs import check_int
from headwater.kernel.instrument import Event, Instrument, Observation, current
from headwater.timeline.layout import WRITE_ONLY
from headwater.timeline.records import NO_HORIZON, check_score

# ── Reporting ─────────────────────────────────────────────────────────────────────────────────────
# What a farm reports of itself to an instrument; nothing while there is none.
#
# The names are listed in ``headwater.timeline.metrics``.


T = TypeVar("T")


class FarmReports:
    """The reports of one farm, under its name without passwords.

    They go to ``own`` if that is set, else to the installed instrument.
    """

    def __init__(self, farm: str) -> None:
        self.farm = farm
        self.own: Instrument | None = None

    @property
    def instrument(self) -> Instrument | None:
        """The instrument that is reported to; look for one before computing what is reported."""
        return current() if self.own is None else self.own

    def count(self, name: str, n: int = 1) -> None:
        """Count something that takes no time of its own."""
        instrument = self.instrument
        if instrument is not None:
            instrument.count(name, self.farm, n)

    def took(self, name: str, seconds: float) -> None:
        """Report a part of an operation that is over."""
        instrument = self.instrument
        if instrument is not None:
            event = Event(name, self.farm, "ok", seconds)
            instrument.end(instrument.begin(name, self.farm), event)

    async def operation(
        self, name: str, work: Awaitable[T], messages: Callable[[T], int] | int
    ) -> T:
        """Await an operation and report it; ``messages`` are given, or counted in its result."""
        instrument = self.instrument
        if instrument is None:
            return await work
        observation = Observation(instrument, name, self.farm)
        if isinstance(messages, int):
            observation.messages = messages
        try:
            result = await work
        except HeadwaterError as error:
            observation.end("failed", error)
            raise
        except BaseException as error:
            # Cancelled, or a fault of ours: clusters may have done any part of it.
            observation.end("unknown", error)
            raise
        if not isinstance(messages, int):
            observation.messages = messages(result)
        observation.end()
        return result


# ── Options ───────────────────────────────────────────────────────────────────────────────────────


Horizon: TypeAlias = "float | Callable[[], float] | None"

DEFAULT_QUORUM: Final = "51%"
DEFAULT_TIMEOUT_MS: Final = 3000
MAX_TIMEOUT_MS: Final = 60_000
MAX_RATE: Final = 1_000_000_000


class ClusterPlan(NamedTuple):
    """The instances of a cluster, in order; one that is ``write_only`` is never read."""

    urls: list[str]
    write_only: bool


@dataclass(frozen=True, slots=True)
class FarmOptions:
    """Options that were checked; Farm.open says what each means."""

    write_quorum: int | str
    hash: str
    read_strategy: str
    repair_strategy: str
    max_size: int
    keep: int
    read_rate: int
    promote_after_ms: int
    repair_rate: int
    timeout_ms: int
    horizon: RisingHorizon
    reports: FarmReports


def parse_farm(text: str) -> list[ClusterPlan]:
    """Read clusters separated by ";", each of instances separated by ","; white space is ignored.

    The word WRITEONLY among the instances of a cluster makes it take writes and serve no reads.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a farm is named by a str, not {type(text).__name__}")
    plans: list[ClusterPlan] = []
    for place, part in enumerate("".join(text.split()).split(";"), 1):
        words = part.split(",")
        urls = [word for word in words if word.lower() != WRITE_ONLY]
        if not all(urls) or not urls:
            raise InvalidInput(
                f"cluster {place} of the farm lacks an instance; write host:port,host:port for a "
                "cluster, and ; between clusters"
            )
        plans.append(ClusterPlan(urls, write_only=len(urls) < len(words)))
    if all(plan.write_only for plan in plans):
        raise InvalidInput("no cluster of the farm may be read; leave WRITEONLY out of one")
    return plans


def parse_quorum(quorum: int | str, clusters: int) -> int:
    """Return how many clusters must take a write: a number, or a percentage, rounded up."""
    if isinstance(quorum, str):
        percent = re.fullmatch(r"(\d+(?:\.\d+)?)%", quorum.strip())
        if percent and 0 < Fraction(percent[1]) <= 100:
            return math.ceil(Fraction(percent[1]) * clusters / 100)
        if not quorum.strip().isdecimal():
            raise InvalidInput(
                f"write_quorum must be a number of clusters or a percentage up to 100%, as '51%', "
                f"not {quorum!r}"
            )
        quorum = int(quorum)
    return check_int(quorum, "write_quorum", 1, clusters)


class RisingHorizon:
    """The horizon of a farm: a number, or what a function returns, but never less than before.

    A tombstone below a horizon is forgotten; if the horizon fell, inserts that it had beaten would
    be accepted again.
    """

    def __init__(self, horizon: Horizon) -> None:
        self._source = horizon if callable(horizon) else None
        self._highest = NO_HORIZON
        if horizon is not None and not callable(horizon):
            self._highest = check_score(horizon)

    def __call__(self) -> float:
        """Return the horizon as of now; raises InvalidInput for one that is not a score."""
        if self._source is not None:
            self._highest = max(self._highest, check_score(self._source()))
        return self._highest
