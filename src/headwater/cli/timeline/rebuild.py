"""``headwater timeline rebuild``: make timelines again from a log."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, StoreUrl, connected, known
from headwater.cli.timeline.cli_types import WritingFarmFlags
from headwater.errors import HeadwaterError, InvalidInput

if TYPE_CHECKING:
    from headwater.log.stream import Stream
    from headwater.log.types import Message
    from headwater.timeline import Farm, Written
    from headwater.timeline.feeding import Operation

    Read = Callable[[Message], Iterable[Operation]]

_BATCH = 1000


@grouped
def rebuild(
    farm: WritingFarmFlags,
    streams: Annotated[
        list[str],
        typer.Argument(
            metavar="STREAM...",
            help="Streams to read.",
            show_default=False,
            autocompletion=completing.streams,
        ),
    ],
    start: Annotated[
        int, typer.Option("--from", min=1, metavar="OFFSET", help="The first offset to read.")
    ] = 1,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="MODULE:FUNCTION",
            help="The function that turns a message into operations. Default: the value is JSON.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the operations of all messages of streams to a farm, up to their current end.

    Operations that the farm has already change nothing, so the command may be run on a farm in
    use, and more than once.
    """
    from headwater.timeline import Farm

    read = _reader(reader)
    with connected(store) as hw, Farm.open(farm.instances, **farm.arguments()) as opened:
        for stream in [known(hw, name) for name in streams]:
            _show(stream.name, *_rebuild(stream, start, read, opened), as_json)


def _rebuild(stream: Stream, start: int, read: Read, farm: Farm) -> tuple[int, Written]:
    """Apply one stream; prints the offset to continue from when it fails."""
    from headwater.timeline import Written
    from headwater.timeline.feeding import apply

    end, at, seen, done = stream.info().last, start, 0, Written()
    try:
        while at <= end:
            passage = stream.read_from(at, min(_BATCH, end + 1 - at))
            if passage.gap:
                gap = output.range_text(*passage.gap)
                output.warn(f"offsets {gap} of {stream.name} were evicted; what they held is lost")
            messages = [message for message in passage.messages if message.offset <= end]
            done = done.plus(apply(farm, (op for message in messages for op in read(message))))
            seen += len(messages)
            at = passage.next
    except HeadwaterError:
        output.warn(f"stopped at offset {at} of {stream.name}; continue there with --from {at}")
        raise
    return seen, done


def _reader(name: str | None) -> Read:
    from headwater.timeline.feeding import operations

    if name is None:
        return lambda message: operations(message.value)
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidInput(f"{name!r} is not of the form MODULE:FUNCTION")
    # As python -m does, so that modules in the current directory are found.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name} cannot be used: {error}") from error
    return found  # type: ignore[no-any-return]


def _show(stream: str, seen: int, done: Written, as_json: bool) -> None:
    counts = [f"{count} {name}" for name, count in done._asdict().items() if count]
    output.answer(
        views.timelines.RebuiltView.of(done, stream=stream, messages=seen),
        f"{stream}: {seen} messages, {', '.join(counts) or 'nothing new'}",
        as_json,
    )
