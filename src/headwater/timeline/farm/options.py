"""The options of a farm, and how their texts are read: clusters, quorum, horizon."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int
from headwater.timeline.farm.reporting import FarmReports
from headwater.timeline.merging import NO_HORIZON
from headwater.timeline.naming import WRITE_ONLY
from headwater.timeline.scores import check_score

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
