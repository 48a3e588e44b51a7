"""How far each instance of a farm is behind, estimated by a sample of timelines."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from headwater.errors import StoreError
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.aio_farm import AsyncFarm


class Sample(NamedTuple):
    """Of one instance: timelines compared, and elements of them that it lacks or has outdated."""

    keys: int = 0
    behind: int = 0


async def sample(
    farm: AsyncFarm, count: int, chance: random.Random
) -> dict[tuple[int, str], Sample]:
    """Compare about ``count`` random timelines of each instance on all clusters.

    Returns a sample by number of the cluster, from 1 on, and instance. Changes nothing.
    """
    places = [(c, p) for c in farm.clusters for p in range(len(c.pool.instances))]
    picked = await asyncio.gather(*(_pick(c, p, count, chance) for c, p in places))
    keys = list(dict.fromkeys(key for found in picked for key in found))
    behind = (await farm.compare(keys)).behind
    samples: dict[tuple[int, str], Sample] = {}
    for number, (cluster, lacking) in enumerate(zip(farm.clusters, behind, strict=True), 1):
        for instance, share in cluster.pool.split(keys):
            lacks = sum(lacking.get(key, 0) for key in share)
            samples[number, instance.where] = Sample(len(share), lacks)
    return samples


async def _pick(cluster: Cluster, place: int, count: int, chance: random.Random) -> list[bytes]:
    """Return some keys of an instance; none of one that does not answer."""
    try:
        return await cluster.random_keys(place, count, chance)
    except StoreError:
        return []
