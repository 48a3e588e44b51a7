"""Commands on the members of a channel: add, reserve, and end a batch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli import options, output
from headwater.cli.ick.cli_types import (
    ChannelName,
    Count,
    Members,
    Score,
    member_json,
    member_of,
    scores,
    show_listed,
)
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.errors import InvalidInput, UnknownIck

if TYPE_CHECKING:
    from headwater.ick.ick import IckChannel
    from headwater.ick.types import Batch


@contextmanager
def known_channel(url: str | None, name: str, **wishes: Any) -> Iterator[IckChannel]:
    """Give a channel that exists; a name that was never used is taken for a slip of the pen."""
    with connected(url) as hw:
        channel = hw.ick_channel(name, **wishes)
        if channel.stats() is None:
            raise UnknownIck(name)
        yield channel


def add(
    name: ChannelName,
    members: Members = None,
    score: Score = None,
    not_before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not to be handed out before; ISO 8601."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, help="How many shards a new channel gets; 8 if not said.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Say that members are dirty: those named, or each line of standard input.

    One that is dirty already takes the lower score and the earlier time.
    """
    when = None if not_before is None else options.position(not_before)
    if isinstance(when, str):
        raise typer.BadParameter(f"{when!r} is no time like 2030-01-31T12:00:00Z")
    with connected(store) as hw:
        done = hw.ick_channel(name, shards).add(scores(members, score), not_before=when)
    if as_json:
        output.show_json({"channel": name, **done._asdict()})
    else:
        output.say(f"{done.new} new, {done.lowered} lowered")


def reserve(
    name: ChannelName,
    count: Count = 10,
    consumer: Annotated[
        str | None, typer.Option(help="Who reserves; a name of its own each time if not said.")
    ] = None,
    lease: Annotated[
        str, typer.Option(metavar="SPAN", help="For how long: 30s, 5m; then others may have it.")
    ] = "30s",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Lease a shard and reserve its lowest members; --json prints what commit understands."""
    wishes = {"consumer": consumer, "lease_ms": options.duration_ms(lease)}
    with known_channel(store, name, **wishes) as channel:
        batch = channel.reserve(count)
    if as_json:
        output.show_json(*([_document(batch)] if batch else []))
    elif batch:
        output.say(f"shard {batch.shard}, token {batch.token}, {output.time_text(batch.until_ms)}")
        output.show_table(["member", "score", "generation"], list(batch), fold=3)
    else:
        output.say("nothing is free: nothing is dirty, or others hold it")


def _document(batch: Batch) -> dict[str, Any]:
    return {
        "channel": batch.channel,
        "epoch": batch.epoch,
        "shard": batch.shard,
        "token": batch.token,
        "until_ms": batch.until_ms,
        "reserved": [
            {**member_json(row.member), "score": row.score, "generation": row.generation}
            for row in batch
        ],
    }


def _batches() -> Iterator[Batch]:
    """Understand what reserve --json printed, from standard input."""
    from headwater.ick.types import Batch, Reserved

    for line in sys.stdin.buffer:
        try:
            found = json.loads(line)
            rows = tuple(
                Reserved(member_of(row), row["score"], row["generation"])
                for row in found.pop("reserved")
            )
            yield Batch(**found, reserved=rows)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InvalidInput(
                "standard input is not what `headwater ick channel reserve --json` prints; "
                "give that, a document a line"
            ) from None


def commit(
    name: ChannelName, members: Members = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Say that the batch on standard input, or some members of it, is clean."""
    with known_channel(store, name) as channel:
        done = sum(channel.commit(batch, *(members or ())) for batch in _batches())
    if as_json:
        output.show_json({"channel": name, "committed": done})
    else:
        output.say(f"committed {done}")


def release(
    name: ChannelName,
    members: Members = None,
    delay: Annotated[
        str, typer.Option(metavar="SPAN", help="To be handed out after that: 30s, 5m.")
    ] = "0",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give the batch on standard input, or some members of it, back undone."""
    delay_ms = options.duration_ms(delay)
    with known_channel(store, name) as channel:
        given = sum(
            channel.release(batch, *(members or ()), delay_ms=delay_ms) for batch in _batches()
        )
    if as_json:
        output.show_json({"channel": name, "released": given})
    else:
        output.say(f"released {given}")


def list_members(
    name: ChannelName, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members, where they are and in which shard, in no order; changes nothing."""
    with known_channel(store, name) as channel:
        show_listed(channel.scan(), count, as_json)
