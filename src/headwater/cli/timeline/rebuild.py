"""``headwater timeline rebuild``: make timelines anew from a log."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected, known
from headwater.cli.timeline.cli_types import (
    MAX_SIZE,
    QUORUM,
    TIMEOUT_MS,
    Hash,
    Horizon,
    Instances,
    MaxSize,
    Quorum,
    Timeout,
)
from headwater.errors import HeadwaterError, InvalidInput

if TYPE_CHECKING:
    from headwater.log.stream import Stream
    from headwater.log.types import Message
    from headwater.timeline import Farm, Written
    from headwater.timeline.feeding import Operation

    Read = Callable[[Message], Iterable[Operation]]

_BATCH = 1000


def rebuild(
    streams: Annotated[
        list[str], typer.Argument(metavar="STREAM...", help="Streams to read.", show_default=False)
    ],
    instances: Instances,
    start: Annotated[
        int, typer.Option("--from", min=1, metavar="OFFSET", help="Read from this offset on.")
    ] = 1,
    reader: Annotated[
        str | None,
        typer.Option(
            "--reader",
            metavar="MODULE:FUNCTION",
            help="What makes operations of a message; without it the value is JSON.",
            show_default=False,
        ),
    ] = None,
    quorum: Quorum = QUORUM,
    max_size: MaxSize = MAX_SIZE,
    horizon: Horizon = None,
    hash: Hash = "murmur3",
    timeout_ms: Timeout = TIMEOUT_MS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Write the operations of all messages of streams to a farm, up to their present end.

    To write what is there already changes nothing, so it may be run on a farm in use, and again.
    """
    from headwater.timeline import Farm

    read = _reader(reader)
    with (
        connected(store) as hw,
        Farm.open(
            instances,
            write_quorum=quorum,
            max_size=max_size,
            horizon=horizon,
            hash=hash,
            timeout_ms=timeout_ms,
        ) as farm,
    ):
        for stream in [known(hw, name) for name in streams]:
            _show(stream.name, *_rebuild(stream, start, read, farm), as_json)


def _rebuild(stream: Stream, start: int, read: Read, farm: Farm) -> tuple[int, Written]:
    """Apply one stream; a failure is told with the offset from which to go on."""
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
        output.warn(f"stopped at offset {at} of {stream.name}; go on there by --from {at}")
        raise
    return seen, done


def _reader(name: str | None) -> Read:
    from headwater.timeline.feeding import operations

    if name is None:
        return lambda message: operations(message.value)
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidInput(f"{name!r} is not of the form MODULE:FUNCTION")
    # As python -m does: what lies in the directory one works in can be named.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"{name} cannot be used: {error}") from error
    return found  # type: ignore[no-any-return]


def _show(stream: str, seen: int, done: Written, as_json: bool) -> None:
    if as_json:
        output.show_json({"stream": stream, "messages": seen, **done._asdict()})
    else:
        told = [f"{n} {name}" for name, n in done._asdict().items() if n]
        output.say(f"{stream}: {seen} messages, {', '.join(told) or 'nothing new'}")
