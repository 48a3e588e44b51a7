"""``headwater keep``: the housekeeper. Any number may run at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.monitoring_options import MonitoringFlags
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, StoreUrl, connected, known, queue_of
from headwater.errors import StoreError, UnreadableNode
from headwater.outages import store_may_recover

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.views.housekeeping import (
        ChannelChangeView,
        QueueChangeView,
        StreamChangeView,
    )

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


class _Chores(NamedTuple):
    """The objects of one kind that a round looks after, and how; returns whether all was done."""

    names: Callable[[], Iterable[str]]
    keep: Callable[[str], bool]


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
    run at once. With --once the exit code is 1 when something could not be done.
    """
    from headwater.stopping import StopSignal, stop_on_signals

    stop = StopSignal()
    with stop_on_signals(stop.set), connected(store) as hw, monitoring.watched(store):
        for name in streams or ():
            known(hw, name)
        for name in queues or ():
            queue_of(hw, name)
        chores = _chores(hw, streams, queues, as_json)
        while not stop.is_set():
            done = True
            try:
                for kind in chores:
                    for name in kind.names():
                        if stop.is_set():
                            break
                        done &= _keep_one(kind, name)
            except StoreError as error:
                # A store that is down may be back in the next round.
                if once or not store_may_recover(error):
                    raise
                output.warn(f"error: {error}")
            if once:
                raise typer.Exit(0 if done else 1)
            stop.wait(interval)


def _keep_one(kind: _Chores, name: str) -> bool:
    """Keep one object; damage of it is reported and does not affect the others."""
    try:
        return kind.keep(name)
    except UnreadableNode as error:
        output.warn(f"error: {error}")
        return False


def _chores(
    hw: Headwater, streams: list[str] | None, queues: list[str] | None, as_json: bool
) -> list[_Chores]:
    """Return what a round has to do: everything, or only the objects that were named."""
    from headwater.log.handles import StreamHandle
    from headwater.log.registry import list_deleted
    from headwater.log.retention import free

    named: dict[str, str] = {}

    def keep_stream(name: str) -> bool:
        (kept,) = hw.keep(name)
        if kept.idle_holder and named.get(name) != kept.idle_holder:
            named[name] = kept.idle_holder
            output.warn(
                f"warning: stream {name!r}: {kept.held} messages are held for "
                f"{kept.idle_holder!r}, "
                "which nobody has seen for a day; remove it, or set an age limit: "
                f"headwater stream retain {name} --max-idle 7d"
            )
        _show(name, views.housekeeping.StreamChangeView.all_of(kept), _STREAM_DEEDS, as_json)
        if kept.fault is not None:
            output.warn(f"error: stream {name!r}: {kept.fault}")
        return kept.fault is None

    def keep_queue(name: str) -> bool:
        (kept,) = hw.keep_queues(name)
        _show(name, views.housekeeping.QueueChangeView.all_of(kept), _QUEUE_DEEDS, as_json)
        return True

    def keep_channel(name: str) -> bool:
        for kept in hw.keep_channels(name):
            changes = views.housekeeping.ChannelChangeView.all_of(kept)
            _show(name, changes, _CHANNEL_DEEDS, as_json)
        return True

    def free_stream(name: str) -> bool:
        hw.store.run(free(StreamHandle(name, set())))
        return True

    if streams or queues:
        return [
            _Chores(lambda: streams or (), keep_stream),
            _Chores(lambda: queues or (), keep_queue),
        ]
    return [
        _Chores(hw.streams, keep_stream),
        _Chores(hw.queues, keep_queue),
        _Chores(hw.ick_channels, keep_channel),
        _Chores(lambda: hw.store.run(list_deleted()), free_stream),
    ]


def _show(
    name: str, changes: Iterable[ChangeView], deeds: Mapping[str, str], as_json: bool
) -> None:
    for change in changes:
        messages = output.counted(change.count, "message")
        sentence = f"{name}: {deeds[change.change].format(change.count, messages=messages)}"
        output.answer(change, sentence, as_json)
