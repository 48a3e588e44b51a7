"""The job ``walk``: compares and repairs all timelines of a farm, by tasks all over a cluster.

Each task walks one instance, as ``headwater timeline walk`` does for all. A timeline is compared by
one task, wherever copies of it lie. A repeated task repairs again, which changes nothing.
A run that dies has repaired part of the timelines; the next one compares all, and writes the rest.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from headwater.kernel.inputs import Duration, check_int, whole_ms
from headwater.spark.jobs.progress import JobReport, Summary, counted, deed
from headwater.spark.jobs.tasks import in_tasks, tasks_at_once
from headwater.spark.timelines import FarmPlan, Share, absolute_farm, shares
from headwater.timeline.farm.options import DEFAULT_TIMEOUT_MS
from headwater.timeline.records import DEFAULT_SIZE
from headwater.timeline.walker import AT_ONCE, MAX_RATE, Scan, WalkPace, WalkPositions


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkWalked(Summary):
    """What a walk found and did.

    ``behind`` is the number of elements that each instance of each cluster lacked or had wrong;
    ``failures`` how many times a cluster could not be read or written for a timeline, and
    ``unscanned`` the instances that could not be walked. ``removed`` are elements that a cluster
    held although newer ones fill their timeline, or although they are below the horizon.
    """

    timelines: int = 0
    elements: int = 0
    differing: int = 0
    written: int = 0
    failures: int = 0
    removed: int = 0
    unscanned: list[str] = field(default_factory=list)
    behind: dict[str, int] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether nothing was left out."""
        return not self.failures and not self.unscanned

    def sentence(self) -> str:
        """See Summary."""
        verb = deed(self.dry_run, "write", "wrote")
        lacking = sum(self.behind.values()) if self.dry_run else self.written
        removed = (
            f", {deed(self.dry_run, 'remove', 'removed')} {self.removed}" if self.removed else ""
        )
        return (
            f"compared {counted(self.timelines, 'timeline')}, {verb} {counted(lacking, 'element')}"
            f"{removed}"
        )


def walk(
    spark: SparkSession,
    instances: str | None = None,
    *,
    rate: int = 10_000,
    max_size: int = DEFAULT_SIZE,
    keep: int | None = None,
    horizon: float | None = None,
    hash: str = "murmur3",
    timeout_ms: Duration = DEFAULT_TIMEOUT_MS,
    dry_run: bool = False,
    report: JobReport | None = None,
) -> SparkWalked:
    """Compare all timelines of a farm on all clusters, and repair what differs.

    ``rate`` is how many timelines all tasks together compare in a second. Raises InvalidInput, and
    FarmUnreachable when no instance serves.
    """
    began = time.monotonic()
    check_int(rate, "rate", 1, MAX_RATE)
    plan = FarmPlan(
        absolute_farm(instances), max_size, horizon, hash, whole_ms(timeout_ms), keep=keep
    )
    plan.require()
    parts = shares(plan)
    each = max(1, rate // max(1, min(len(parts), tasks_at_once(spark))))
    report = report or JobReport()
    with report.tasks(spark, "walking through timelines"):
        found = in_tasks(spark, _Work(plan, each, dry_run), parts, dict[str, Any])
    behind: dict[str, int] = {}
    for one in found:
        for name, count in one.pop("behind").items():
            behind[name] = behind.get(name, 0) + count
    unscanned = [name for one in found for name in one.pop("unscanned")]
    figures = {name: sum(one[name] for one in found) for name in found[0]}
    return SparkWalked(
        dry_run=dry_run,
        seconds=time.monotonic() - began,
        behind=dict(sorted(behind.items())),
        unscanned=unscanned,
        **figures,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """What a task does."""

    plan: FarmPlan
    rate: int
    dry_run: bool

    def __call__(self, share: Share) -> dict[str, Any]:
        return asyncio.run(self._walk(share))

    async def _walk(self, share: Share) -> dict[str, Any]:
        done = {
            "timelines": 0,
            "elements": 0,
            "differing": 0,
            "written": 0,
            "failures": 0,
            "removed": 0,
        }
        behind: dict[str, int] = {}
        pace = WalkPace(self.rate)
        async with self.plan.open() as farm:
            await farm.follow()
            only = (share.cluster, share.instance)
            scan = Scan(farm.source, WalkPositions(), random.Random(), only)
            async for met in scan.batches():
                for at in range(0, len(met.keys), AT_ONCE):
                    keys = met.keys[at : at + AT_ONCE]
                    await pace.wait(len(keys))
                    compared = await farm.compare(keys)
                    done["timelines"] += len(keys)
                    done["elements"] += compared.elements
                    done["differing"] += compared.differing
                    done["failures"] += compared.failures
                    if self.dry_run:
                        done["removed"] += compared.excess
                    for number, cluster in enumerate(farm.clusters):
                        lacking = compared.behind[number]
                        for instance, own in cluster.pool.split([k for k in keys if k in lacking]):
                            name = f"{number + 1} {instance.where}"
                            lacks = sum(lacking[key] for key in own)
                            behind[name] = behind.get(name, 0) + lacks
                    differ = list({key for lacking in compared.behind for key in lacking})
                    if differ and not self.dry_run:
                        repaired = await farm.repair(differ)
                        done["written"] += repaired.written
                        done["failures"] += repaired.failures
                        done["removed"] += repaired.trimmed + repaired.forgotten
            return {**done, "behind": behind, "unscanned": list(scan.failed)}
