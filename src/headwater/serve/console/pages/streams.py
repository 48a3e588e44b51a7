"""The list of all streams."""

from __future__ import annotations

from headwater.log.types import GroupInfo
from headwater.serve.console.calls import Context, PageCall
from headwater.views import overview


async def show_streams(call: PageCall) -> Context:
    """Show all streams, page by page."""
    names, part = call.part(call.visible(await call.hw.streams()))
    streams = await call.hw.store.run(overview.some_streams(names))
    groups: dict[str, list[GroupInfo]] = {}
    for row in await call.hw.store.run(overview.groups_of(streams)):
        groups.setdefault(row.stream, []).append(row.group)
    rates = {name: call.served.watched.rates.of(name) for name in names}
    return {"streams": streams, "groups": groups, "rates": rates, "part": part}
