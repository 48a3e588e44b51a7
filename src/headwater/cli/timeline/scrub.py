"""``headwater timeline scrub``: what of a farm's timelines is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson
from headwater.cli.scrub import ProgressLine, ReadRate, show_report
from headwater.cli.timeline.cli_types import FarmFlags

if TYPE_CHECKING:
    from headwater.store.scrubbing import ScrubReport


@grouped
def scrub(farm: FarmFlags, rate: ReadRate = None, as_json: AsJson = False) -> None:
    """Read all timelines on all clusters, and report what is damaged, misplaced or differs.

    It changes nothing, and may run while the farm is in use; headwater timeline walk repairs.
    Progress goes to standard error. Ctrl-C ends it with a report of what it has seen. The exit code
    is 0 when no damage was found, 3 when something is wrong, 130 when it was interrupted before it
    found anything, and 1 when an instance could not be read.
    """
    import asyncio

    from headwater.kernel.stopping import StopSignal, stop_on_signals
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.layout import safe_farm
    from headwater.timeline.scrubbing import scrub_farm

    stop, progress = StopSignal(), ProgressLine()

    async def run() -> ScrubReport:
        async with AsyncFarm.open(farm.instances, **farm.arguments()) as opened:
            return await scrub_farm(opened, rate_mb_s=rate, progress=progress, stop=stop.is_set)

    with stop_on_signals(stop.set):
        report = asyncio.run(run())
    progress.end()
    show_report(report, safe_farm(farm.instances), as_json)
