"""``headwater stream replay``: a range of a stream into another one, at a speed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, StreamName, connected, refused

if TYPE_CHECKING:
    from headwater.log.replaying import Replayed


def replay(
    name: StreamName,
    into: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="The stream to write to.", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            help="A sandbox group for the copies; they go to STREAM.sandbox without --into.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, help="The first offset.", show_default="first")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="The last offset.", show_default="last")
    ] = None,
    speed: Annotated[
        str, typer.Option(metavar="SPEED", help="1x, 10x, 0.5x, or max: as fast as possible.")
    ] = "max",
    producer: Annotated[
        str | None,
        typer.Option(
            help="Name of the producer. The same one continues where it was; another starts again.",
            show_default="by range and speed",
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy a range of a stream into another one, once, at its own speed or faster.

    If it is interrupted, the same command continues where it was, and writes nothing twice.
    """
    from headwater.kernel.stopping import stop_on_signals

    if into is None and group is None:
        raise typer.BadParameter("give --into STREAM, --group GROUP, or both")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter(f"--last {last} is before --first {first}; swap them")
    pace = _speed(speed)
    stopping = threading.Event()
    with connected(store) as hw, stop_on_signals(stopping.set):
        done = hw.replay(
            name,
            into,
            first=first,
            last=last,
            speed=pace,
            group=group,
            producer=producer,
            stop=stopping.is_set,
        )
    output.answer(views.searches.ReplayedView.of(done), _words(done), as_json)


def _speed(text: str) -> float | None:
    from headwater.log.replaying import LEAST_SPEED, MOST_SPEED

    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not LEAST_SPEED <= speed <= MOST_SPEED:
        raise refused(f"{text!r} is not a speed like 1x, 10x or max", "--speed")
    return speed


def _words(done: Replayed) -> str:
    if done.last < done.first:
        return f"nothing to replay: {done.source} has no message there"
    missed = f"; {output.counted(done.missed, 'message')} had been evicted" if done.missed else ""
    copied = f"{output.counted(done.written, 'message')} written to {done.into}{missed}"
    if done.complete:
        return f"replayed {output.range_text(done.first, done.last)}: {copied}"
    return f"stopped before {done.next}: {copied}; the same command continues there"
