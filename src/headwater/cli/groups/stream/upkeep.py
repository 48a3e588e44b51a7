"""Streams and their groups: which there are, how they stand, and how much is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.derived import taking
from headwater.cli.options import (
    AsJson,
    GroupName,
    GroupSettings,
    OnlyStream,
    StoreUrl,
    StreamName,
    Yes,
    confirm,
    connected,
    grouped,
    known,
    known_stream,
    similar,
)
from headwater.cli.output import GROUP_COLUMNS, NO_GROUPS, terms_text
from headwater.doors.catalogue import STREAM
from headwater.errors import UnknownGroup
from headwater.kernel.inputs import MAX_EXACT

if TYPE_CHECKING:
    from headwater.doors.catalogue import Kind
    from headwater.log.group import Group
    from headwater.log.stream import Stream
    from headwater.log.topic import Topic
    from headwater.log.types import Retention, StreamInfo


Forever = Annotated[bool, typer.Option("--forever", help="Keep everything from now on.")]
Apply = Annotated[bool, typer.Option("--apply", help="Apply the policy that is set.")]


def list_streams(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all streams."""
    with connected(store) as hw:
        found = hw.store.run(views.overview.all_streams())
    output.show_list(
        found,
        views.streams.StreamView.of,
        {
            "stream": lambda facts: facts.name,
            "first": lambda facts: facts.first,
            "last": lambda facts: facts.last,
            "messages": lambda facts: facts.length,
            "size": lambda facts: output.size_text(facts.bytes),
            "groups": lambda facts: len(facts.groups),
            "newest message": lambda facts: output.time_text(facts.last_time_ms),
        },
        as_json,
        nothing="no streams: a stream is created by its first write",
    )


def info(name: StreamName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show offsets, size, times, retention, groups and readers of a stream."""
    with known_stream(store, name) as stream:
        facts = stream.info()
    if as_json:
        output.show_json(views.streams.StreamView.of(facts))
        return
    readers = ", ".join(f"{reader} at {at}" for reader, at in sorted(facts.readers.items()))
    output.show_facts(
        [
            ("stream", facts.name),
            ("offsets", output.range_text(facts.first, facts.last) if facts.length else None),
            ("messages", facts.length),
            ("size", output.size_text(facts.bytes)),
            ("nodes", f"{facts.nodes}, sealed up to {facts.sealed}"),
            ("created", output.time_text(facts.created_ms)),
            ("newest message", output.time_text(facts.last_time_ms)),
            ("retention", _policy(facts.retention)),
            ("compaction", "by the housekeeper" if facts.auto_compact else "when asked for"),
            ("groups", ", ".join(sorted(facts.groups)) or None),
            ("readers", readers or None),
            ("held up by", _holder(facts)),
            ("lost", ", ".join(output.range_text(*one) for one in facts.missing) or None),
        ]
    )


def _holder(facts: StreamInfo) -> str | None:
    if facts.idle_holder is None:
        return None
    hours = (facts.slowest_idle_ms or 0) // 3_600_000
    return f"{facts.idle_holder} at {facts.slowest_next}, which nobody has seen for {hours} hours"


def _policy(policy: Retention) -> str:
    limits = [(field.name, getattr(policy, field.name)) for field in fields(policy)]
    set_ = [f"{name} {limit}" for name, limit in limits if limit is not None]
    return ", ".join(set_) or "everything is kept"


def evict(
    name: StreamName,
    offset: Annotated[
        int | None,
        typer.Argument(
            metavar="OFFSET",
            min=1,
            max=MAX_EXACT,
            help="The last offset to evict.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Instead of OFFSET: evict all but the newest N."),
    ] = None,
    yes: Yes = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Evict old messages now, even those that somebody still needs; groups are told their gap."""
    from headwater.doors.replies import reply

    if (offset is None) == (keep is None):
        raise typer.BadParameter("give either OFFSET or --keep")
    with known_stream(store, name) as stream:
        evict = STREAM.operation("evict")
        which = f"up to {offset}" if keep is None else f"but the newest {keep}"
        confirm(evict.row.asks.format(stream=name, which=which), yes)
        gone = stream.evict(offset if offset is not None else -(keep or 0))
        first = stream.info().first
    done = reply(evict, (name,), gone)
    output.answer(
        done, f"evicted {output.counted(gone, 'message')}; the first is now {first}", as_json
    )


@taking(STREAM, "retain")
def retain(
    name: StreamName,
    forever: Forever = False,
    apply: Apply = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Show the retention policy; or set it, by any limit, and apply it.

    A limit that is not named does not apply. `headwater keep` applies the policy from then on.
    Retention waits for the slowest group or reader unless --force.
    """
    check_retention(given, forever, apply)
    with known_stream(store, name) as stream:
        change_retention(STREAM, stream, stream.info, given, forever, apply, as_json)


def check_retention(given: dict[str, Any], forever: bool, apply: bool) -> None:
    """Refuse options of ``retain`` that do not go together."""
    limited = bool(given.keys() - {"force"})
    if limited + forever + apply > 1:
        raise typer.BadParameter("limits, --forever and --apply exclude each other")
    if given["force"] and not (limited or apply):
        raise typer.BadParameter("--force goes with a limit or with --apply")


def change_retention(
    kind: Kind,
    target: Stream | Topic,
    info: Callable[[], StreamInfo],
    given: dict[str, Any],
    forever: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Set how much is kept of a stream or of each partition; without a wish, show it."""
    from headwater.doors.replies import reply
    from headwater.log.types import Retention

    limits = {name: limit for name, limit in given.items() if name != "force"}
    policy = Retention(**limits) if limits or forever else info().retention
    if not (limits or forever or apply):
        kinds = {"stream": views.streams.RetentionView, "topic": views.streams.TopicRetentionView}
        shown = kinds[kind.name].of(policy, **{kind.name: target.name})
        output.answer(shown, _policy(policy), as_json)
        return
    done = target.retain(**asdict(policy), force=given["force"])
    held = f"; {done.held} held for {done.held_by}" if done.held else ""
    evicted = f"evicted {output.counted(done.evicted, 'message')}"
    retained = reply(kind.operation("retain"), (target.name,), done)
    output.answer(retained, f"{_policy(policy)}: {evicted}{held}", as_json)


@contextmanager
def known_group(url: str | None, stream: str, group: str) -> Iterator[Group]:
    """Open a group that exists, in the block."""
    with known_stream(url, stream) as found:
        try:
            yield found.group(group)
        except UnknownGroup:
            raise UnknownGroup(stream, group, similar(group, found.info().groups)) from None


def list_groups(
    name: OnlyStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where every group stands, of one stream or of all."""
    with connected(store) as hw:
        streams = [known(hw, name).info()] if name else hw.store.run(views.overview.all_streams())
        found = hw.store.run(views.overview.groups_of(streams))
    output.show_list(
        found,
        lambda row: views.streams.GroupView.of(row.group, stream=row.stream),
        GROUP_COLUMNS if name else {"stream": lambda row: row.stream} | GROUP_COLUMNS,
        as_json,
        nothing=NO_GROUPS,
    )


@grouped
def set_group(
    name: StreamName,
    group: GroupName,
    wanted: GroupSettings,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a group with --start, or change how it delivers, and what it does with dead letters.

    Settings that are not named stay as they are.
    """
    arguments = wanted.arguments()
    with known_stream(store, name) as stream:
        wanted.check(f"stream {name!r}", group, stream.info().groups)
        found = stream.group(group, **arguments)
        found.read(0)
        facts = found.info()
    output.answer(
        views.streams.GroupView.of(facts, stream=name),
        f"{group}: next {facts.next}, {terms_text(facts)}",
        as_json,
    )
