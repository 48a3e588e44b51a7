"""``headwater keep``: the housekeeper. Any number may run at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected, grouped, known, queue_of
from headwater.cli.server_options import MonitoringFlags
from headwater.errors import StoreError
from headwater.kernel.failures import store_may_recover

if TYPE_CHECKING:
    from headwater.ick.types import KeptChannel
    from headwater.log.retention import Kept
    from headwater.queue.types import KeptQueue
    from headwater.views.stores import ChannelChangeView, QueueChangeView, StreamChangeView

    ChangeView = StreamChangeView | QueueChangeView | ChannelChangeView

# What each change says was done.
_STREAM_DEEDS = {
    "published": "finished {} publishes that were left",
    "sealed": "sealed {messages}",
    "cooled": "packed {messages} smaller",
    "expired": "gave up {messages}, expired",
    "buried": "moved {messages}, expired, to the dead letters",
    "producers": "removed {} producers that no longer write",
    "members": "removed {} members that are gone",
    "evicted": "evicted {messages}",
    "compacted": "compacted {messages} away",
}
_QUEUE_DEEDS = {
    "returned": "redelivers {messages}, not acknowledged in time",
    "buried": "gave up {messages} after the last attempt",
    "outlived": "dropped {messages} at the end of --ttl-ms",
    "producers": "removed {} producers that no longer push",
}
_CHANNEL_DEEDS = {"resharded": "finished {} change of the number of shards"}


@grouped
def keep(
    once: Annotated[bool, typer.Option("--once", help="End after one round.")] = False,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between rounds.")] = 10.0,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="Only this stream; may be repeated."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Only this queue; may be repeated."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    *,
    monitoring: MonitoringFlags,
) -> None:
    """Seal nodes, apply retention, compact where asked for, and give up what has expired.

    In queues, messages that were not acknowledged in time are redelivered or given up. In channels
    of dirty lists, a change of the number of shards is completed.

    It runs until Ctrl-C or SIGTERM, prints a line for each change, and exits with 0. Any number may
    run at once. An object that cannot be kept is named, and the others are kept. With --once the
    exit code is then 1.
    """
    from headwater.client import keep_each
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop = StopSignal()
    with (
        connected(store, runs_on=not once) as hw,
        stop_on_signals(stop.set),
        monitoring.watched(store),
    ):
        for name in streams or ():
            known(hw, name)
        for name in queues or ():
            queue_of(hw, name)
        told: dict[str, str] = {}
        while not stop.is_set():
            faults: list[str] = []

            def tell_fault(fault: str, faults: list[str] = faults) -> None:
                faults.append(fault)
                output.warn(f"error: {fault}")

            try:
                for kept in keep_each(
                    hw, streams or (), queues or (), tell_fault=tell_fault, stop=stop.is_set
                ):
                    _show(kept, told, as_json)
            except StoreError as error:
                # A store that is down may be back in the next round.
                if once or not store_may_recover(error):
                    raise
                output.warn(f"error: {error}")
            if once:
                raise typer.Exit(1 if faults else 0)
            stop.wait(interval)


def _show(kept: Kept | KeptQueue | KeptChannel, told: dict[str, str], as_json: bool) -> None:
    """Print what was done to an object; who holds messages back is told once, by ``told``."""
    from headwater.log.retention import Kept
    from headwater.queue.types import KeptQueue

    changes: Iterable[ChangeView]
    if isinstance(kept, Kept):
        _warn_of_holder(kept, told)
        name, deeds = kept.stream, _STREAM_DEEDS
        changes = views.stores.StreamChangeView.all_of(kept)
    elif isinstance(kept, KeptQueue):
        name, deeds = kept.queue, _QUEUE_DEEDS
        changes = views.stores.QueueChangeView.all_of(kept)
    else:
        name, deeds = kept.channel, _CHANNEL_DEEDS
        changes = views.stores.ChannelChangeView.all_of(kept)
    for change in changes:
        messages = output.counted(change.count, "message")
        sentence = f"{name}: {deeds[change.change].format(change.count, messages=messages)}"
        output.answer(change, sentence, as_json)


def _warn_of_holder(kept: Kept, told: dict[str, str]) -> None:
    if kept.idle_holder and told.get(kept.stream) != kept.idle_holder:
        told[kept.stream] = kept.idle_holder
        output.warn(
            f"warning: stream {kept.stream!r}: {kept.held} messages are held for "
            f"{kept.idle_holder!r}, which nobody has seen for a day; remove it, or set an age "
            f"limit: headwater stream retain {kept.stream} --max-idle 7d"
        )
