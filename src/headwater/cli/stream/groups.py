"""The groups of a stream: where they stand, and what an operator may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli import options, output
from headwater.cli.options import (
    AsJson,
    GroupName,
    StoreUrl,
    StreamName,
    connected,
    known,
    known_stream,
)
from headwater.errors import UnknownGroup

if TYPE_CHECKING:
    from headwater.log.stream import Group, Stream
    from headwater.log.types import GroupInfo

_Offsets = Annotated[
    list[str],
    typer.Argument(metavar="OFFSET...", help="Offsets, as 5, and ranges, as 5-9."),
]


@contextmanager
def _known_group(url: str | None, stream: str, group: str) -> Iterator[Group]:
    with known_stream(url, stream) as found:
        yield found.group(group)


def list_groups(
    name: Annotated[
        str | None, typer.Argument(metavar="STREAM", help="One stream only.", show_default=False)
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where every group stands, of one stream or of all."""
    with connected(store) as hw:
        streams = [known(hw, name)] if name else [hw.stream(one) for one in hw.streams()]
        found = [(stream.name, facts) for stream in streams for facts in _groups(stream)]
    if as_json:
        output.show_json(*(output.group_json(*row) for row in found))
    elif found:
        output.show_table(
            [
                *([] if name else ["stream"]),
                *("group", "next", "ack_offset", "pending", "lag", "missed"),
                *("expired", "dead", "members", "waiting"),
            ],
            [(*([] if name else [stream]), *_row(facts)) for stream, facts in found],
        )
    else:
        output.say("no groups: a group comes into being with its first read")


def _groups(stream: Stream) -> Iterator[GroupInfo]:
    for name in sorted(stream.info().groups):
        try:
            yield stream.group(name).info()
        except UnknownGroup:
            continue  # removed since the stream was asked


def _row(facts: GroupInfo) -> tuple[object, ...]:
    return (
        facts.name,
        facts.next,
        facts.ack_offset,
        facts.pending,
        facts.lag,
        facts.missed,
        facts.expired,
        facts.dead,
        len(facts.members),
        facts.waiting,
    )


def ack(
    name: StreamName,
    group: GroupName,
    offsets: _Offsets,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say that messages are done."""
    parsed = options.offsets(offsets)
    with _known_group(store, name, group) as found:
        done = found.ack(*parsed)
    if as_json:
        output.show_json({"stream": name, "group": group, "acked": done})
    else:
        output.say(f"acknowledged {done} that were pending")


def nack(
    name: StreamName,
    group: GroupName,
    offsets: _Offsets,
    delay_ms: Annotated[int, typer.Option(min=0, help="Let them come again after so long.")] = 0,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give messages back to the group, to come again."""
    parsed = options.offsets(offsets)
    with _known_group(store, name, group) as found:
        given = found.nack(*parsed, delay_ms=delay_ms)
    if as_json:
        output.show_json({"stream": name, "group": group, "nacked": given})
    else:
        output.say(f"given back {given} that were pending")


def seek(
    name: StreamName,
    group: GroupName,
    to: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="An offset, first, last, or a time like 2030-01-31T12:00:00Z."
        ),
    ],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set where a group stands: all before is done, all from there on is new."""
    position = options.position(to)
    with _known_group(store, name, group) as found:
        offset = found.seek(position)
    if as_json:
        output.show_json({"stream": name, "group": group, "next": offset})
    else:
        output.say(f"{group} reads on at {offset}")


def dead(
    name: StreamName,
    group: GroupName,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How many at most.")] = 100,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the oldest dead letters of a group: what it gave up."""
    with _known_group(store, name, group) as found:
        letters = found.dead(count)
        keeps = found.info().dead_letters
    if as_json:
        output.show_json(
            *(
                {
                    "origin": letter.origin,
                    "attempts": letter.attempts,
                    "tag": letter.tag,
                    **output.value_json(letter.value),
                    "buried_ms": letter.time_ms,
                    "offset": letter.offset,
                }
                for letter in letters
            )
        )
    elif letters:
        output.show_table(
            ["origin", "attempts", "buried", "tag", "value"],
            [
                (
                    letter.origin,
                    letter.attempts,
                    output.time_text(letter.time_ms),
                    letter.tag,
                    letter.value,
                )
                for letter in letters
            ],
        )
    else:
        output.say("no dead letters" if keeps else f"{group} keeps no dead letters")


def redrive(
    name: StreamName,
    group: GroupName,
    count: Annotated[
        int | None,
        typer.Option("--count", "-c", min=1, help="How many at most.", show_default="all"),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give dead letters back to the group, as if they had never been tried."""
    with _known_group(store, name, group) as found:
        done = found.redrive() if count is None else found.redrive(count)
    if as_json:
        output.show_json(
            {"stream": name, "group": group, "returned": done.returned, "gone": done.gone}
        )
    else:
        lost = f"; {done.gone} stay, because the stream no longer holds them" if done.gone else ""
        output.say(f"given back {done.returned}{lost}")


def remove_group(
    name: StreamName, group: GroupName, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """End a group, so that retention no longer waits for it."""
    with _known_group(store, name, group) as found:
        if not found.remove():
            raise UnknownGroup(name, group)
    if as_json:
        output.show_json({"stream": name, "group": group, "removed": True})
    else:
        output.say(f"removed {group}")
