"""Commands on the members of a channel: add, reserve, and end a batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.ick.cli_types import ChannelName, Members, Score, scores, show_listed
from headwater.cli.options import AsJson, Count, StoreUrl, connected, similar
from headwater.errors import InvalidInput, UnknownIck

if TYPE_CHECKING:
    from headwater.ick.ick import IckChannel
    from headwater.ick.types import Batch


@contextmanager
def known_channel(url: str | None, name: str, **wishes: Any) -> Iterator[IckChannel]:
    """Yield a channel that exists; raises UnknownIck, as most often the name is mistyped."""
    with connected(url) as hw:
        channel = hw.ick_channel(name, **wishes)
        if channel.stats() is None:
            raise UnknownIck(name, similar(name, hw.ick_channels()))
        yield channel


def add(
    name: ChannelName,
    members: Members = None,
    score: Score = None,
    not_before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The time before which they are not delivered."),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Shards of a new channel. Default: 8.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add members that are dirty: those named, or each line of standard input.

    A member that is dirty already keeps the lower score and the earlier time.
    """
    when = None if not_before is None else options.point_in_time(not_before, "--not-before")
    with connected(store) as hw:
        done = hw.ick_channel(name, shards).add(scores(members, score), not_before=when)
    output.answer(
        views.icks.ChannelAddedView.of(done, channel=name),
        f"{done.new} new, {done.lowered} lowered",
        as_json,
    )


def reserve(
    name: ChannelName,
    count: Count = 10,
    consumer: Annotated[
        str | None, typer.Option(help="Name of the consumer. Default: a new name each time.")
    ] = None,
    lease: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the shard is leased: 30s, 5m.")
    ] = "30s",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Lease a shard and reserve its lowest members; commit and release read what --json prints."""
    wishes = {"consumer": consumer, "ack_ms": options.duration_ms(lease, "--lease")}
    with known_channel(store, name, **wishes) as channel:
        batch = channel.reserve(count)
    if as_json:
        output.show_json(*([views.icks.BatchView.of(batch)] if batch else []))
    elif batch:
        until = output.time_text(batch.until_ms)
        output.say(f"shard {batch.shard}, token {batch.token}, leased until {until}")
        output.show_table(["member", "score", "generation"], list(batch), fold=3)
    else:
        output.say("nothing is free: nothing is dirty, or others hold it")


def _batches() -> Iterator[Batch]:
    """Yield the batches that reserve --json printed, from standard input."""
    for line in sys.stdin.buffer:
        try:
            yield views.icks.BatchView.from_json(line).batch()
        except ValueError as error:
            raise InvalidInput(
                f"standard input is not what `headwater ick channel reserve --json` prints "
                f"({error}); give that, a document a line"
            ) from None


def commit(
    name: ChannelName, members: Members = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Commit the batch on standard input, or some members of it: they are clean."""
    with known_channel(store, name) as channel:
        done = sum(channel.commit(batch, *(members or ())) for batch in _batches())
    committed = views.icks.ChannelCommittedView(channel=name, committed=done)
    output.answer(committed, f"committed {done}", as_json)


def release(
    name: ChannelName,
    members: Members = None,
    delay: Annotated[
        str, typer.Option(metavar="SPAN", help="How long they are not delivered: 30s, 5m.")
    ] = "0",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Return the batch on standard input, or some members of it, as still dirty."""
    delay_ms = options.duration_ms(delay, "--delay")
    with known_channel(store, name) as channel:
        given = sum(
            channel.release(batch, *(members or ()), delay_ms=delay_ms) for batch in _batches()
        )
    released = views.icks.ReleasedView(channel=name, released=given)
    output.answer(released, f"released {given}", as_json)


def list_members(
    name: ChannelName, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members, where they are and in which shard, in no particular order; changes nothing."""
    with known_channel(store, name) as channel:
        show_listed(channel.scan(), count, as_json)
