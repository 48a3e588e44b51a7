"""How a farm writes: to all clusters at once, done when enough of them have all of it.

The others go on in the background. Operations commute and may be repeated, so a write that failed
for want of a quorum is written again as it was, whatever part of it was done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from headwater.errors import QuorumFailed, StoreError
from headwater.timeline.cluster.calls import Batch
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.background import Background
from headwater.timeline.records import Written


async def write(
    clusters: Sequence[Cluster],
    batch: Batch,
    quorum: int,
    background: Background,
) -> Written:
    """Write to all clusters; returns as soon as every key is on ``quorum`` of them.

    Raises QuorumFailed when all have answered and some key is on fewer.
    """
    tasks = {background.start(cluster.write(batch)) for cluster in clusters}
    best = Written()
    answered = complete = 0
    missing: Counter[bytes] = Counter()
    causes: list[StoreError] = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            outcome = task.result()
            best = max(best, outcome.written)
            answered += 1
            complete += not outcome.failed
            missing.update(outcome.failed.keys())
            causes += {id(error): error for error in outcome.failed.values()}.values()
        if answered - max(missing.values(), default=0) >= quorum:
            return best
    raise QuorumFailed(complete, quorum, len(clusters), causes)
