"""Streams as a whole: which there are, how they stand, and how much of them is kept."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headwater.cli import options, output
from headwater.cli.options import AsJson, StoreUrl, StreamName, connected, known_stream

# A stream's default for the age of delete markers, without importing the log for it.
_MARKER_MS = 24 * 3600 * 1000


def list_streams(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all streams."""
    with connected(store) as hw:
        found = [hw.stream(name).info() for name in hw.streams()]
    if as_json:
        output.show_json(*(output.stream_json(facts) for facts in found))
    elif found:
        output.show_table(
            ["stream", "first", "last", "messages", "size", "groups", "last write"],
            [
                (
                    facts.name,
                    facts.first,
                    facts.last,
                    facts.length,
                    output.size_text(facts.bytes),
                    len(facts.groups),
                    output.time_text(facts.last_time_ms),
                )
                for facts in found
            ],
        )
    else:
        output.say("no streams: a stream comes into being with its first write")


def info(name: StreamName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show how a stream stands."""
    with known_stream(store, name) as stream:
        facts = stream.info()
    if as_json:
        output.show_json(output.stream_json(facts))
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
            ("last write", output.time_text(facts.last_time_ms)),
            ("retention", _policy(asdict(facts.retention))),
            ("compaction", "by the housekeeper" if facts.auto_compact else "when asked for"),
            ("groups", ", ".join(sorted(facts.groups)) or None),
            ("readers", readers or None),
        ]
    )


def _policy(limits: dict[str, int | None]) -> str:
    told = [f"{name} {limit}" for name, limit in limits.items() if limit is not None]
    return ", ".join(told) or "everything is kept"


def evict(
    name: StreamName,
    offset: Annotated[
        int | None,
        typer.Argument(metavar="OFFSET", min=1, help="Forget all up to it.", show_default=False),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Forget all but the newest so many instead.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Forget old messages now, whoever still needs them; each group is told its gap."""
    if (offset is None) == (keep is None):
        raise typer.BadParameter("give either OFFSET or --keep")
    with known_stream(store, name) as stream:
        gone = stream.evict(offset if offset is not None else -(keep or 0))
        first = stream.info().first
    if as_json:
        output.show_json({"stream": name, "evicted": gone, "first": first})
    else:
        output.say(f"evicted {gone} messages; the first is now {first}")


def retain(
    name: StreamName,
    max_count: Annotated[int | None, typer.Option(min=0, help="Keep so many messages.")] = None,
    max_age: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Keep messages for 7d, 12h, 30m, 45s, 500ms.")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Keep so much: 1000000, 500MB, 2GiB.")
    ] = None,
    forever: Annotated[
        bool, typer.Option("--forever", help="Keep everything from now on.")
    ] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Apply the policy that is set.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Evict now what groups and readers still need, too.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the retention policy; or set it, by any limit, and apply it.

    A limit that is not named is no limit. `headwater keep` applies the policy from then on.
    Retention waits for the slowest group or reader unless --force.
    """
    limits = {
        "max_count": max_count,
        "max_age_ms": None if max_age is None else options.duration_ms(max_age),
        "max_bytes": None if max_bytes is None else options.size_bytes(max_bytes),
    }
    given = any(limit is not None for limit in limits.values())
    if given + forever + apply > 1:
        raise typer.BadParameter("limits, --forever and --apply exclude each other")
    if force and not (given or apply):
        raise typer.BadParameter("--force goes with a limit or with --apply")
    with known_stream(store, name) as stream:
        if not given and not forever:
            limits = asdict(stream.info().retention)
        if not (given or forever or apply):
            if as_json:
                output.show_json({"stream": name, **limits})
            else:
                output.say(_policy(limits))
            return
        done = stream.retain(**limits, force=force)
    if as_json:
        output.show_json({"stream": name, **limits, **done._asdict()})
        return
    held = f"; {done.held} held for {done.held_by}" if done.held else ""
    output.say(f"{_policy(limits)}: evicted {done.evicted} messages{held}")


def compact(
    name: StreamName,
    marker_ms: Annotated[
        int, typer.Option(min=0, help="Delete markers older than that may go.")
    ] = _MARKER_MS,
    auto: Annotated[
        bool | None,
        typer.Option("--auto/--no-auto", help="Let `headwater keep` do it from now on, or not."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Keep the last message of every tag; offsets stay. An empty value deletes its tag.

    With --auto or --no-auto only says whether the housekeeper shall do so.
    """
    with known_stream(store, name) as stream:
        if auto is not None:
            stream.auto_compact(auto, marker_ms=marker_ms)
            if as_json:
                output.show_json({"stream": name, "auto_compact": auto})
            else:
                output.say("the housekeeper " + ("compacts it" if auto else "leaves it as it is"))
            return
        gone = stream.compact(marker_ms=marker_ms)
    if as_json:
        output.show_json({"stream": name, "removed": gone})
    else:
        output.say(f"removed {gone} messages")


def seal(name: StreamName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Pack everything written so far into compressed nodes."""
    with known_stream(store, name) as stream:
        sealed = stream.seal()
    if as_json:
        output.show_json({"stream": name, "sealed": sealed})
    else:
        output.say(f"sealed {sealed} messages")


def delete(
    name: StreamName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove a stream with its groups and readers, for ever."""
    with known_stream(store, name) as stream:
        if not yes:
            facts = stream.info()
            typer.confirm(
                f"Delete {name} with {facts.length} messages and {len(facts.groups)} groups?",
                abort=True,
                err=True,
            )
        stream.delete()
    if as_json:
        output.show_json({"stream": name, "deleted": True})
    else:
        output.say(f"deleted {name}")
