"""Streams as a whole: which there are, how they stand, and how much of them is kept."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.derived import taking
from headwater.cli.options import (
    AsJson,
    StoreUrl,
    StreamName,
    Yes,
    confirm,
    connected,
    known_stream,
)
from headwater.doors.catalogue import STREAM
from headwater.kernel.inputs import MAX_EXACT

if TYPE_CHECKING:
    from headwater.log.types import Retention, StreamInfo


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
    forever: Annotated[
        bool, typer.Option("--forever", help="Keep everything from now on.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the policy that is set.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
    *,
    force: bool,
    **limits: Any,
) -> None:
    """Show the retention policy; or set it, by any limit, and apply it.

    A limit that is not named does not apply. `headwater keep` applies the policy from then on.
    Retention waits for the slowest group or reader unless --force.
    """
    from headwater.doors.replies import reply
    from headwater.log.types import Retention

    if bool(limits) + forever + apply > 1:
        raise typer.BadParameter("limits, --forever and --apply exclude each other")
    if force and not (limits or apply):
        raise typer.BadParameter("--force goes with a limit or with --apply")
    policy = Retention(**limits)
    with known_stream(store, name) as stream:
        if not limits and not forever:
            policy = stream.info().retention
        if not (limits or forever or apply):
            shown = views.streams.RetentionView.of(policy, stream=name)
            output.answer(shown, _policy(policy), as_json)
            return
        done = stream.retain(**asdict(policy), force=force)
    held = f"; {done.held} held for {done.held_by}" if done.held else ""
    evicted = f"evicted {output.counted(done.evicted, 'message')}"
    retained = reply(STREAM.operation("retain"), (name,), done)
    output.answer(retained, f"{_policy(policy)}: {evicted}{held}", as_json)
