"""``headwater ick``: add to dirty lists, work them off, look after them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import completing, options, output
from headwater.cli.derived import add_commands, answer
from headwater.cli.options import AsJson, Count, StoreUrl, connected, similar
from headwater.doors.catalogue import CHANNEL, ICK
from headwater.errors import InvalidInput, UnknownIck

if TYPE_CHECKING:
    from headwater.ick.ick import Ick, IckChannel
    from headwater.ick.keys import Member
    from headwater.ick.types import Batch, Listed

app = typer.Typer()
channels = typer.Typer(no_args_is_help=True, help="Dirty lists for many consumers.")

Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="Key of the Ick, as redis-ick spells it.", show_default=False
    ),
]
ChannelName = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL",
        help="Name of the channel.",
        show_default=False,
        autocompletion=completing.channels,
    ),
]
Members = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MEMBER]...", help="Members.", show_default=False),
]
Score = Annotated[
    float | None,
    typer.Option(help="The score of all of them. Default: this machine's time in seconds."),
]
Backwash = Annotated[
    bool,
    typer.Option(
        "--backwash", help="First return what is reserved, so that the lowest of all are reserved."
    ),
]


def _scores(members: list[str] | None, score: float | None) -> dict[Member, float]:
    """Return the members, or the lines of standard input as members, with their score."""
    when = time.time() if score is None else score
    if members:
        return dict.fromkeys(members, when)
    return {line.rstrip(b"\r\n"): when for line in sys.stdin.buffer}


def _show_listed(rows: Iterator[Listed], count: int, as_json: bool) -> None:
    """Print where members are; in no order, so that no list is too long to begin with."""
    output.show_list(
        list(islice(rows, count)),
        views.icks.ListedView.of,
        {
            "member": lambda row: row.member,
            "score": lambda row: row.score,
            "place": lambda row: row.place,
            "shard": lambda row: row.shard,
        },
        as_json,
        nothing="nothing is dirty",
        fold=4,
    )


# ── Icks ──────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _known(url: str | None, key: str) -> Iterator[Ick]:
    """Yield an Ick that exists; raises UnknownIck, as most often the key is mistyped."""
    with connected(url) as hw:
        ick = hw.ick(key)
        if ick.stats() is None:
            raise UnknownIck(key)
        yield ick


@app.command()
def add(
    key: Key,
    members: Members = None,
    score: Score = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Add members that are dirty: those named, or each line of standard input.

    A member that is dirty already keeps the lower score.
    """
    with connected(store) as hw:
        added = hw.ick(key).add(_scores(members, score))
    answer(ICK.operation("add"), [key], added, as_json)


@app.command()
def reserve(
    key: Key,
    count: Count = 10,
    backwash: Backwash = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Reserve the lowest members, and show all that are reserved, until they are committed."""
    with _known(store, key) as ick:
        _show_pairs(ick.reserve(count, backwash), as_json)


@app.command()
def exchange(
    key: Key,
    members: Members = None,
    count: Count = 10,
    backwash: Backwash = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Commit members, then reserve, in one step."""
    with _known(store, key) as ick:
        _show_pairs(ick.exchange(count, *(members or ()), backwash=backwash), as_json)


def _show_pairs(pairs: Iterable[tuple[Member, float]], as_json: bool) -> None:
    output.show_list(
        list(pairs),
        lambda pair: views.icks.ScoredView.of(*pair),
        {"member": lambda pair: pair[0], "score": lambda pair: pair[1]},
        as_json,
        nothing="nothing is dirty",
        fold=2,
    )


@app.command()
def stats(key: Key, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the sizes of both sets, and their lowest and highest scores."""
    with _known(store, key) as ick:
        facts = ick.stats() or {}
    if as_json:
        output.show_json(views.icks.IckView.of(facts))
    else:
        output.show_facts(facts.items())


@app.command("list")
def list_members(
    key: Key, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members and the set they are in, in no particular order; changes nothing."""
    with _known(store, key) as ick:
        _show_listed(ick.scan(), count, as_json)


add_commands(app, ICK, _known)
app.add_typer(channels, name="channel")


# ── Channels ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _known_channel(url: str | None, name: str, **wishes: Any) -> Iterator[IckChannel]:
    """Yield a channel that exists; raises UnknownIck, as most often the name is mistyped."""
    with connected(url) as hw:
        channel = hw.ick_channel(name, **wishes)
        if channel.stats() is None:
            raise UnknownIck(name, similar(name, hw.ick_channels()))
        yield channel


@channels.command("list")
def list_channels(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all channels."""
    with connected(store) as hw:
        states = hw.store.run(views.overview.all_channels())
    output.show_list(
        states,
        views.icks.ChannelView.of,
        {
            "channel": lambda facts: facts.name,
            "shards": lambda facts: len(facts.shards),
            "ready": lambda facts: facts.ready,
            "later": lambda facts: facts.later,
            "reserved": lambda facts: facts.reserved,
            "waited_ms": lambda facts: facts.waited_ms,
            "folding": lambda facts: None if facts.folding is None else round(facts.folding, 2),
        },
        as_json,
        nothing="no channels: a channel is created by its first use",
    )


@channels.command("add")
def add_to_channel(
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
        added = hw.ick_channel(name, shards).add(_scores(members, score), not_before=when)
    answer(CHANNEL.operation("add"), [name], added, as_json)


@channels.command("reserve")
def reserve_of_channel(
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
    with _known_channel(store, name, **wishes) as channel:
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


@channels.command("commit")
def commit_to_channel(
    name: ChannelName, members: Members = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Commit the batch on standard input, or some members of it: they are clean."""
    with _known_channel(store, name) as channel:
        committed = sum(channel.commit(batch, *(members or ())) for batch in _batches())
    answer(CHANNEL.operation("commit"), [name], committed, as_json)


@channels.command("release")
def release_to_channel(
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
    with _known_channel(store, name) as channel:
        released = sum(
            channel.release(batch, *(members or ()), delay_ms=delay_ms) for batch in _batches()
        )
    answer(CHANNEL.operation("release"), [name], released, as_json)


@channels.command("renew")
def renew_batches(
    name: ChannelName,
    lease: Annotated[
        str, typer.Option(metavar="SPAN", help="How long the shard is leased from now: 30s, 5m.")
    ] = "30s",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Renew the lease of each batch on standard input."""
    ack_ms = options.duration_ms(lease, "--lease")
    with _known_channel(store, name) as channel:
        for batch in _batches():
            until_ms = channel.renew(batch, ack_ms=ack_ms)
            answer(CHANNEL.operation("renew"), [name], until_ms, as_json)


@channels.command()
def consumers(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show who holds which shard until when."""
    with _known_channel(store, name) as channel:
        leases = channel.consumers()
    output.show_list(
        leases,
        views.icks.LeaseView.of,
        {
            "shard": lambda lease: lease.shard,
            "consumer": lambda lease: lease.consumer,
            "token": lambda lease: lease.token,
            "reserved": lambda lease: lease.reserved,
            "until": lambda lease: output.time_text(lease.until_ms),
            "left_ms": lambda lease: lease.left_ms,
        },
        as_json,
        nothing="nobody holds a shard",
    )


@channels.command("stats")
def channel_stats(name: ChannelName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the members of every shard by state, the longest wait, and who holds it."""
    with _known_channel(store, name) as channel:
        facts = channel.stats()
    if facts is None:
        return
    if as_json:
        output.show_json(views.icks.ChannelShardsView.of(facts))
        return
    rows = [
        (
            f"{shard.shard} (left)" if shard in facts.left_behind else shard.shard,
            shard.ready,
            shard.later,
            shard.reserved,
            shard.waited_ms,
            shard.added,
            shard.entered,
            shard.lease.consumer if shard.lease else None,
            shard.lease.token if shard.lease else None,
            shard.lease.left_ms if shard.lease else None,
        )
        for shard in (*facts.shards, *facts.left_behind)
    ]
    words = ["shard", "ready", "later", "reserved", "waited_ms", "added", "entered"]
    output.show_table([*words, "consumer", "token", "left_ms"], rows)


@channels.command("members")
def list_channel_members(
    name: ChannelName, count: Count = 100, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Show members, where they are and in which shard, in no particular order; changes nothing."""
    with _known_channel(store, name) as channel:
        _show_listed(channel.scan(), count, as_json)


add_commands(channels, CHANNEL, _known_channel)
