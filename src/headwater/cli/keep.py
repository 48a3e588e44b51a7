"""``headwater keep``: the housekeeper. Any number may run at once."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected, known
from headwater.errors import AccessDenied, LibraryTooNew, StoreError, StoreTooOld

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.log.housekeeping import Kept
    from headwater.queue.types import KeptQueue

# What each count in a report says was done, in the order in which it is done.
_DEEDS = {
    "published": "finished {} publishes that were left",
    "sealed": "sealed {} messages",
    "cooled": "packed {} messages smaller",
    "expired": "gave up {} expired messages",
    "buried": "moved {} expired messages to the dead letters",
    "producers": "forgot {} silent producers",
    "members": "forgot {} members that are gone",
    "evicted": "evicted {} messages",
    "compacted": "compacted {} messages away",
}
# The same for a queue.
_DEEDS_OF_QUEUES = {
    "returned": "{} messages were not acknowledged in time and come again",
    "buried": "gave up {} messages after their last attempt",
    "outlived": "dropped {} messages that outlived their time",
    "producers": "forgot {} silent producers",
}


def keep(
    once: Annotated[bool, typer.Option("--once", help="One round, then end.")] = False,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between rounds.")] = 10.0,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="Only this stream; may be given again."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Only this queue; may be given again."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Seal, apply retention, compact where asked for, give up what expired, forget who is gone.

    Of queues: let come again what was not acknowledged in time, or give it up. Of channels of dirty
    lists: bring a change of their shards to its end.

    Runs until Ctrl-C or SIGTERM, and prints a line for each change. Any number may run at once.
    """
    with _until_told() as told, connected(store) as hw:
        for name in streams or ():
            known(hw, name)
        while not told.wait(0):
            sound = True
            try:
                some = streams or queues
                for name in streams or () if some else hw.streams():
                    if told.wait(0):
                        break
                    sound &= _keep(hw, name, as_json)
                for name in queues or () if some else hw.queues():
                    if told.wait(0):
                        break
                    _tell_of_queue(hw.keep_queues(name)[0], as_json)
                for name in () if some else hw.ick_channels():
                    if told.wait(0):
                        break
                    _keep_channel(hw, name, as_json)
            except (AccessDenied, LibraryTooNew, StoreTooOld):
                raise
            except StoreError as error:
                # A store that is away may be back in the next round.
                if once:
                    raise
                output.warn(f"error: {error}")
            if once:
                raise typer.Exit(0 if sound else 1)
            told.wait(interval)


class _Told:
    """Whether somebody has asked for the end; a pipe, because it may be written in a handler."""

    def __init__(self) -> None:
        self._ask, self._tell = os.pipe()

    def tell(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        os.write(self._tell, b".")

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._ask], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._tell)


def _keep(hw: Headwater, name: str, as_json: bool) -> bool:
    """Keep one stream and tell of it; returns whether all could be done."""
    (kept,) = hw.keep(name)
    _tell(kept, as_json)
    if kept.fault is not None:
        output.warn(f"error: stream {name!r}: {kept.fault}")
    return kept.fault is None


def _keep_channel(hw: Headwater, name: str, as_json: bool) -> None:
    """Bring a change of the number of shards forward, and tell when it is over."""
    for kept in hw.keep_channels(name):
        if kept.settled and as_json:
            output.show_json({"channel": kept.channel, "change": "resharded", "count": 1})
        elif kept.settled:
            output.say(f"{kept.channel}: brought a change of its shards to the end")


def _tell(kept: Kept, as_json: bool) -> None:
    for deed, words in _DEEDS.items():
        count: int = getattr(kept, deed)
        if not count:
            continue
        if as_json:
            output.show_json({"stream": kept.stream, "change": deed, "count": count})
        else:
            output.say(f"{kept.stream}: {words.format(count)}")


def _tell_of_queue(kept: KeptQueue, as_json: bool) -> None:
    for deed, words in _DEEDS_OF_QUEUES.items():
        count: int = getattr(kept, deed)
        if not count:
            continue
        if as_json:
            output.show_json({"queue": kept.queue, "change": deed, "count": count})
        else:
            output.say(f"{kept.queue}: {words.format(count)}")


@contextmanager
def _until_told() -> Iterator[_Told]:
    """Let SIGTERM and Ctrl-C ask for the end; what is under way is brought to its end first."""
    told = _Told()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, told.tell) for number in signals]
    try:
        yield told
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
        told.close()
