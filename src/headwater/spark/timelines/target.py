"""Which farm is meant, and one client of it per process, kept as long as the process lives."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from typing import Any

from headwater.errors import InvalidInput
from headwater.spark.engine.connections import absolute_url
from headwater.spark.engine.options import SourceOptions
from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.farm.options import (
    DEFAULT_QUORUM,
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    parse_farm,
)
from headwater.timeline.layout import WRITE_ONLY, safe_farm
from headwater.timeline.records import DEFAULT_SIZE, MAX_KEEP, MAX_SIZE, read_score
from headwater.timeline.walker import count_sets

INSTANCES_VARIABLE = "HEADWATER_INSTANCES"
OPTIONS = ("instances", "maxSize", "keep", "horizon", "hash", "timeoutMs")

_farms: dict[tuple[int, FarmPlan], Farm] = {}
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class FarmPlan:
    """A farm, and how to use it; goes to tasks, so it holds words only."""

    instances: str
    max_size: int = DEFAULT_SIZE
    horizon: float | None = None
    hash: str = "murmur3"
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    quorum: str = DEFAULT_QUORUM
    keep: int | None = None

    def __repr__(self) -> str:
        return f"FarmPlan({safe_farm(self.instances)!r})"

    def _words(self) -> dict[str, Any]:
        return {
            "write_quorum": self.quorum,
            "max_size": self.max_size,
            "keep": self.keep,
            "horizon": self.horizon,
            "hash": self.hash,
            "timeout_ms": self.timeout_ms,
        }

    def open(self) -> AsyncFarm:
        """Open a farm for one event loop. Raises InvalidInput."""
        return AsyncFarm.open(self.instances, **self._words())

    def require(self) -> None:
        """Raise FarmUnreachable when no instance of the farm serves."""

        async def look() -> None:
            async with self.open() as farm:
                await farm.follow()
                await count_sets(farm.source)

        asyncio.run(look())

    def farm(self) -> Farm:
        """Return this process's farm; a forked child gets its own. Raises InvalidInput."""
        with _opening:
            key = (os.getpid(), self)
            if key not in _farms:
                _farms[key] = Farm.open(self.instances, **self._words())
            return _farms[key]


def absolute_farm(instances: str | None) -> str:
    """Return a spelling of a farm that means the same in every process of this machine.

    None is ``$HEADWATER_INSTANCES``. Raises InvalidInput.
    """
    instances = instances or os.environ.get(INSTANCES_VARIABLE)
    if not instances:
        raise InvalidInput(
            "no farm is named; add .option('instances', 'host:port,host:port;host:port'), or set "
            f"${INSTANCES_VARIABLE}"
        )
    clusters = [
        [absolute_url(url) if url.startswith("embedded:") else url for url in plan.urls]
        + [WRITE_ONLY] * plan.write_only
        for plan in parse_farm(instances)
    ]
    return ";".join(",".join(cluster) for cluster in clusters)


def plan_of(options: SourceOptions) -> FarmPlan:
    """Find out which farm the options name. Raises InvalidInput."""
    plan = FarmPlan(
        absolute_farm(options.text("instances")),
        options.number("maxSize", 1, MAX_SIZE) or DEFAULT_SIZE,
        _horizon(options.text("horizon")),
        options.text("hash", "murmur3") or "",
        options.number("timeoutMs", 1, MAX_TIMEOUT_MS) or DEFAULT_TIMEOUT_MS,
        options.text("quorum") or DEFAULT_QUORUM,
        options.number("keep", 1, MAX_KEEP),
    )
    # Raises now if anything is wrong with it; nothing is sent yet.
    plan.open()
    return plan


def _horizon(text: str | None) -> float | None:
    try:
        return None if text is None else read_score(text)
    except InvalidInput as error:
        raise InvalidInput(f"option 'horizon': {error}") from None
