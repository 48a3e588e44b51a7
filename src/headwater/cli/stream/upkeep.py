"""Streams as a whole: which there are, how they stand, and how much of them is kept."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.options import (
    AsJson,
    StoreUrl,
    StreamName,
    Yes,
    confirm,
    connected,
    known_stream,
)
from headwater.kernel.inputs import MAX_EXACT

if TYPE_CHECKING:
    from headwater.log.types import Retention, StreamInfo

# A stream's default for the age of delete markers, without importing the log for it.
_MARKER_MS = 24 * 3600 * 1000


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
    if (offset is None) == (keep is None):
        raise typer.BadParameter("give either OFFSET or --keep")
    with known_stream(store, name) as stream:
        what = f"up to {offset}" if keep is None else f"but the newest {keep}"
        confirm(f"Evict all messages {what} from {name}, also what groups have not read?", yes)
        gone = stream.evict(offset if offset is not None else -(keep or 0))
        first = stream.info().first
    done = views.streams.EvictedView(stream=name, evicted=gone, first=first)
    output.answer(
        done, f"evicted {output.counted(gone, 'message')}; the first is now {first}", as_json
    )


def retain(
    name: StreamName,
    max_count: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keep the newest N messages.")
    ] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep messages for 7d, 12h, 30m, 45s, 500ms.")
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Keep the newest 1000000, 500MB, 2GiB of messages."),
    ] = None,
    max_idle: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="Do not wait for groups and readers that were silent for longer."
        ),
    ] = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Keep everything from now on.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the policy that is set.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Evict even what groups and readers still need.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the retention policy; or set it, by any limit, and apply it.

    A limit that is not named does not apply. `headwater keep` applies the policy from then on.
    Retention waits for the slowest group or reader unless --force.
    """
    from headwater.log.types import Retention

    policy = Retention(
        max_count=max_count,
        max_age_ms=None if max_age is None else options.duration_ms(max_age, "--max-age"),
        max_bytes=None if max_bytes is None else options.size_bytes(max_bytes, "--max-bytes"),
        max_idle_ms=None if max_idle is None else options.duration_ms(max_idle, "--max-idle"),
    )
    given = policy != Retention()
    if given + forever + apply > 1:
        raise typer.BadParameter("limits, --forever and --apply exclude each other")
    if force and not (given or apply):
        raise typer.BadParameter("--force goes with a limit or with --apply")
    with known_stream(store, name) as stream:
        if not given and not forever:
            policy = stream.info().retention
        if not (given or forever or apply):
            shown = views.streams.RetentionView.of(policy, stream=name)
            output.answer(shown, _policy(policy), as_json)
            return
        done = stream.retain(**asdict(policy), force=force)
    held = f"; {done.held} held for {done.held_by}" if done.held else ""
    output.answer(
        views.streams.RetainedView.of(policy, done, stream=name),
        f"{_policy(policy)}: evicted {output.counted(done.evicted, 'message')}{held}",
        as_json,
    )


def compact(
    name: StreamName,
    marker_ms: Annotated[
        int, typer.Option(min=0, help="Milliseconds after which delete markers may be removed.")
    ] = _MARKER_MS,
    auto: Annotated[
        bool | None,
        typer.Option(
            "--auto/--no-auto", help="Let `headwater keep` compact from now on, or no longer."
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Keep the last message of every tag; offsets do not change. An empty value deletes its tag.

    What groups have not read or acknowledged is removed, too, unless it is the last of its tag.
    With --auto or --no-auto it only sets whether the housekeeper compacts the stream.
    """
    with known_stream(store, name) as stream:
        if auto is not None:
            stream.auto_compact(auto, marker_ms=marker_ms)
            output.answer(
                views.streams.AutoCompactView(stream=name, auto_compact=auto),
                "the housekeeper " + ("compacts it" if auto else "leaves it as it is"),
                as_json,
            )
            return
        gone = stream.compact(marker_ms=marker_ms)
    done = views.streams.CompactedView(stream=name, removed=gone)
    output.answer(done, f"removed {output.counted(gone, 'message')}", as_json)


def seal(name: StreamName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Pack everything written so far into compressed nodes."""
    with known_stream(store, name) as stream:
        sealed = stream.seal()
    done = views.streams.SealedView(stream=name, sealed=sealed)
    output.answer(done, f"sealed {output.counted(sealed, 'message')}", as_json)


def delete(
    name: StreamName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove a stream with its groups and readers permanently."""
    with known_stream(store, name) as stream:
        facts = stream.info()
        confirm(
            f"Delete {name} with {output.counted(facts.length, 'message')} and "
            f"{output.counted(len(facts.groups), 'group')}?",
            yes,
        )
        stream.delete()
    output.answer(views.streams.StreamDeletedView(stream=name), f"deleted {name}", as_json)
