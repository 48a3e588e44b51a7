"""``headwater timeline walks``: who walks or moves a farm, how far, and what the last one did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson
from headwater.cli.timeline.cli_types import FarmFlags

if TYPE_CHECKING:
    from headwater.timeline.walker import WalkNote


@grouped
def walks(farm: FarmFlags, as_json: AsJson = False) -> None:
    """Show walks and moves of a farm: who runs them, how far they are, what the last one did.

    Walks and moves record their progress on the farm, where it can be seen for thirty days.
    """
    import asyncio

    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.walker import read_notes

    async def look() -> list[WalkNote]:
        async with AsyncFarm.open(farm.instances, **farm.arguments()) as opened:
            await opened.follow()
            return await read_notes(opened.clusters)

    output.show_list(
        asyncio.run(look()),
        views.timelines.WalkNoteView.of,
        {
            "kind": lambda note: note.kind,
            "who": lambda note: note.who,
            "state": lambda note: note.state,
            "began": lambda note: output.time_text(note.began_ms),
            "noted": lambda note: output.time_text(note.noted_ms),
            "passed": lambda note: f"{note.passed} of {note.total}",
            "per s": lambda note: round(note.per_s, 1),
            "left": lambda note: output.age_text(
                None if note.left_s is None else round(note.left_s * 1000)
            ),
            "differed": lambda note: note.repaired.differing,
            "written": lambda note: note.repaired.written,
            "failures": lambda note: note.repaired.failures,
        },
        as_json,
        nothing="no walk was noted in the last thirty days: headwater timeline walk --once",
        styles={"failed": "red", "running": "green"},
    )
