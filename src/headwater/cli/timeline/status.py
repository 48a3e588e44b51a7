"""``headwater timeline status``: how the instances of a farm are, and how far apart."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import FarmFlags

if TYPE_CHECKING:
    from headwater.timeline.records import InstanceStatus
    from headwater.timeline.walker import Sample


@grouped
def status(
    farm: FarmFlags,
    sample: Annotated[
        int,
        typer.Option(
            min=0, max=10_000, metavar="N", help="Compare about N timelines of each instance."
        ),
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Show for each instance whether it is available, what it holds, and how far it is behind.

    How far is estimated from a sample of timelines. The exit code is 1 when an instance is not
    available.
    """
    import asyncio

    from headwater.timeline import walker
    from headwater.timeline.farm.aio_farm import AsyncFarm

    async def look() -> tuple[list[InstanceStatus], dict[tuple[int, str], Sample]]:
        async with AsyncFarm.open(farm.instances, **farm.arguments()) as opened:
            found = await opened.status()
            return found, await walker.sample(opened, sample, random.Random()) if sample else {}

    found, samples = asyncio.run(look())
    nothing = walker.Sample()
    output.show_list(
        [(one, samples.get((one.cluster, one.instance), nothing)) for one in found],
        lambda row: views.timelines.InstanceView.of(*row),
        {
            "cluster": lambda row: row[0].cluster,
            "instance": lambda row: row[0].instance,
            "state": lambda row: "up" if row[0].up else "down",
            "keys": lambda row: row[0].keys,
            "memory": lambda row: output.size_text(row[0].memory_bytes),
            "sampled": lambda row: row[1].keys,
            "behind": lambda row: row[1].behind,
        },
        as_json,
        nothing="no instances",
        fold=0,
        styles={"up": "green", "down": "red"},
    )
    for one in found:
        if not one.up:
            output.warn(f"error: {one.fault}")
    raise typer.Exit(0 if all(one.up for one in found) else 1)
