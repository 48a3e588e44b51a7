"""What is true of members, asked of every cluster that is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headwater.errors import AllReplicasFailed, StoreError
from headwater.timeline.cluster.calls import Known
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.union import verdict
from headwater.timeline.law import State
from headwater.timeline.records import Key, Member


async def score_of(
    clusters: Sequence[Cluster],
    asked: dict[tuple[Key, Member], tuple[bytes, bytes]],
    horizon: float,
) -> dict[tuple[Key, Member], State | None]:
    """Give the newest operation on each member, by the merge law; raises AllReplicasFailed."""
    members: dict[bytes, list[bytes]] = {}
    for key, member in dict.fromkeys(asked.values()):
        members.setdefault(key, []).append(member)
    replies = await asyncio.gather(*(cluster.score(members) for cluster in clusters))
    truths: dict[tuple[bytes, bytes], State | None] = {}
    for key, of_key in members.items():
        answers = [reply[key] for reply in replies]
        known = [answer for answer in answers if isinstance(answer, Known)]
        if not known:
            causes = [answer for answer in answers if isinstance(answer, StoreError)]
            raise AllReplicasFailed([key], len(clusters), causes)
        for member, state in zip(of_key, verdict(of_key, known), strict=True):
            truths[key, member] = None if state is None or state.score < horizon else state
    return {pair: truths[raw] for pair, raw in asked.items()}
