"""``headwater timeline status``: how the instances of a farm are, and how far apart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import (
    MAX_SIZE,
    TIMEOUT_MS,
    Hash,
    Horizon,
    Instances,
    MaxSize,
    Timeout,
)

if TYPE_CHECKING:
    from headwater.timeline.records import InstanceStatus
    from headwater.timeline.walker.sampling import Sample


def status(
    instances: Instances,
    sample: Annotated[
        int, typer.Option(min=0, max=10_000, help="Timelines of each instance to compare.")
    ] = 100,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Show of each instance whether it serves, what it holds, and how far it is behind.

    The latter is told by a sample of timelines, compared on all clusters. Exits with 1 when an
    instance does not serve.
    """
    import asyncio

    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.walker import sampling

    async def look() -> tuple[list[InstanceStatus], dict[tuple[int, str], Sample]]:
        farm = AsyncFarm.open(
            instances, max_size=max_size, horizon=horizon, hash=hash, timeout_ms=timeout_ms
        )
        async with farm:
            found = await farm.status()
            return found, await sampling.sample(farm, sample, random.Random()) if sample else {}

    found, samples = asyncio.run(look())
    nothing = sampling.Sample()
    rows = [(one, samples.get((one.cluster, one.instance), nothing)) for one in found]
    if as_json:
        output.show_json(
            *({**one._asdict(), "sampled": s.keys, "behind": s.behind} for one, s in rows)
        )
    else:
        output.show_table(
            ["cluster", "instance", "state", "keys", "memory", "sampled", "behind"],
            [
                (
                    one.cluster,
                    one.instance,
                    "up" if one.up else "down",
                    one.keys,
                    output.size_text(one.memory_bytes),
                    s.keys,
                    s.behind,
                )
                for one, s in rows
            ],
            fold=0,
            styles={"up": "green", "down": "red"},
        )
    for one, _ in rows:
        if not one.up:
            output.warn(f"error: {one.fault}")
    raise typer.Exit(0 if all(one.up for one in found) else 1)
