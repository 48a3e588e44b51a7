"""How a farm is told what it is to be: clusters, quorum, strategies, horizon; checked at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.inputs import check_int
from headwater.timeline.law import NO_HORIZON
from headwater.timeline.metrics import Metrics
from headwater.timeline.naming import WRITE_ONLY
from headwater.timeline.records import check_score

Horizon: TypeAlias = "float | Callable[[], float] | None"

READ_STRATEGIES: Final = (
    "SendOneReadOne",
    "SendAllReadAll",
    "SendAllReadFirstLinger",
    "SendVarReadFirstLinger",
)
REPAIR_STRATEGIES: Final = ("AllRepairs", "NoRepairs", "RateLimitedRepairs")
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
    """How a farm works; see Farm.open for what each means."""

    write_quorum: int | str
    hash: str
    read_strategy: str
    repair_strategy: str
    max_size: int
    read_rate: int
    promote_after_ms: int
    repair_rate: int
    timeout_ms: int
    metrics: Metrics


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
    """Read how many clusters must take a write: a number, or a percentage, rounded up."""
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


def parse_strategy(name: str, known: tuple[str, ...], what: str) -> str:
    """Read the name of a strategy, in whatever case."""
    found = {strategy.lower(): strategy for strategy in known}
    if not isinstance(name, str) or name.lower() not in found:
        raise InvalidInput(f"{what} must be one of {', '.join(known)}, not {name!r}")
    return found[name.lower()]


class RisingHorizon:
    """The horizon of a farm, now: a number, or what a function says, but never less than before.

    A tombstone below a horizon is forgotten; were the horizon to fall, older inserts of it would be
    taken again.
    """

    def __init__(self, horizon: Horizon) -> None:
        self._source = horizon if callable(horizon) else None
        self._highest = NO_HORIZON
        if horizon is not None and not callable(horizon):
            self._highest = check_score(horizon)

    def __call__(self) -> float:
        """Give the horizon as of now."""
        if self._source is not None:
            self._highest = max(self._highest, check_score(self._source()))
        return self._highest
