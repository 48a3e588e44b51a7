"""How both farms are opened: every option is checked here, before anything is sent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Duration, check_int, check_ms
from headwater.timeline.farm.options import (
    DEFAULT_QUORUM,
    DEFAULT_TIMEOUT_MS,
    MAX_RATE,
    MAX_TIMEOUT_MS,
    FarmOptions,
    Horizon,
    RisingHorizon,
)
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.farm.repairing import REPAIR_STRATEGIES
from headwater.timeline.farm.reporting import FarmReports
from headwater.timeline.naming import safe_farm
from headwater.timeline.records import DEFAULT_SIZE, check_keep, check_max_size


class OpenedFarm(ABC):
    """What is opened by a farm's text and options: Farm and AsyncFarm."""

    @abstractmethod
    def __init__(self, farm: str, options: FarmOptions) -> None: ...

    @classmethod
    def open(
        cls,
        farm: str,
        *,
        write_quorum: int | str = DEFAULT_QUORUM,
        read_strategy: str = "SendAllReadAll",
        repair_strategy: str = "AllRepairs",
        max_size: int = DEFAULT_SIZE,
        keep: int | None = None,
        horizon: Horizon = None,
        hash: str = "murmur3",
        read_rate: int = 2000,
        promote_after_ms: Duration = 50,
        repair_rate: int = 1000,
        timeout_ms: Duration = DEFAULT_TIMEOUT_MS,
    ) -> Self:
        """Open a farm: clusters separated by ";", their instances by ",", as "a:1,b:1;c:1".

        An instance is host:port or the URL of one server. Connections are opened with their first
        use, so a farm opens although servers are down. All programs that use the same servers must
        agree on the number and order of instances, on ``hash`` (murmur3, fnv or fnva), on
        ``max_size`` and on ``keep``. A cluster that has the word WRITEONLY among its instances
        takes writes, and counts for the quorum, but is not read.

        ``write_quorum`` is how many clusters must take a write, or a percentage of them, rounded
        up. ``read_strategy`` is SendOneReadOne, SendAllReadAll, SendAllReadFirstLinger or
        SendVarReadFirstLinger; the latter asks all clusters for up to ``read_rate`` keys a second,
        and beyond that one, and the others when it has not answered after ``promote_after_ms``.
        ``repair_strategy`` is AllRepairs, NoRepairs or RateLimitedRepairs, which repairs up to
        ``repair_rate`` elements a second.

        A key keeps the newest ``keep`` elements, deleted ones counted, by default twice
        ``max_size``, and shows at most ``max_size`` of them. What Roshi wrote fits into the
        default; ``keep`` may be as low as ``max_size`` where Roshi never wrote. With a
        ``horizon``, a score or a function that returns one, what is below it is forgotten and
        rejected. An instance that does not answer within ``timeout_ms`` has failed.

        Raises InvalidInput.
        """
        options = FarmOptions(
            write_quorum=write_quorum,
            hash=hash,
            read_strategy=_known(read_strategy, READ_STRATEGIES, "read_strategy"),
            repair_strategy=_known(repair_strategy, REPAIR_STRATEGIES, "repair_strategy"),
            max_size=check_max_size(max_size),
            keep=check_keep(keep, max_size),
            read_rate=check_int(read_rate, "read_rate", 0, MAX_RATE),
            promote_after_ms=check_ms(promote_after_ms, "promote_after_ms", 0, MAX_TIMEOUT_MS),
            repair_rate=check_int(repair_rate, "repair_rate", 0, MAX_RATE),
            timeout_ms=check_ms(timeout_ms, "timeout_ms", 1, MAX_TIMEOUT_MS),
            horizon=RisingHorizon(horizon),
            reports=FarmReports(safe_farm(farm) if isinstance(farm, str) else ""),
        )
        return cls(farm, options)


def _known(name: str, strategies: Iterable[str], what: str) -> str:
    """Return the name of a strategy, which may be given in any case; raises InvalidInput."""
    found = {strategy.lower(): strategy for strategy in strategies}
    if not isinstance(name, str) or name.lower() not in found:
        raise InvalidInput(f"{what} must be one of {', '.join(strategies)}, not {name!r}")
    return found[name.lower()]
