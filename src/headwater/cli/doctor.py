"""``headwater doctor``: what the store really promises, as a table with a verdict."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, LookedAtDatabase, StoreUrl, connected
from headwater.errors import StoreError

if TYPE_CHECKING:
    from headwater.kernel.profiles import Profile
    from headwater.log.types import StreamInfo
    from headwater.store.doctor import DoctorReport, Finding

# What may fail in a store that can be asked for its streams.
_DURABILITY = {"persistence", "disk", "eviction", "memory", "replicas"}
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    context: typer.Context,
    strict: Annotated[
        bool, typer.Option("--strict", help="Make the exit code 1 on warnings, too.")
    ] = False,
    alarms: Annotated[
        bool,
        typer.Option(
            "--alarms",
            help="Show instead what needs attention now, as the console does: groups that are "
            "behind, dead letters, queues that nobody pops, and so on.",
        ),
    ] = False,
    db: LookedAtDatabase = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what the store really promises, and change nothing.

    The exit code is 0 when the store can be trusted, else 1. With --alarms it is 1 when something
    must be done.
    """
    from headwater.store.doctor import examine

    if alarms:
        raise typer.Exit(_show_alarms(store, db, strict=strict, as_json=as_json))
    report = examine(store)
    more = (*_profile(context.find_root().obj), *_of_streams(report, store))
    report = replace(report, findings=(*report.findings, *more))
    if as_json:
        output.show_json(views.stores.DoctorView.of(report))
    else:
        nodes = any(finding.server for finding in report.findings)
        output.show_table(
            [*(["server"] if nodes else []), "check", "verdict", "found", "cure"],
            [
                (
                    *([finding.server] if nodes else []),
                    finding.check,
                    finding.verdict,
                    finding.found,
                    finding.cure,
                )
                for finding in report.findings
            ],
            styles=_STYLES,
            fold=2,
        )
        if any("rights below" in f.cure or f.check == "access" for f in report.findings):
            output.say(f"The user needs these rights: {report.rules}")
        output.say(f"{report.verdict}: {report.summary} ({report.where})", _STYLES[report.verdict])
    failed = report.verdict == "fail" or (strict and report.verdict == "warn")
    raise typer.Exit(1 if failed else 0)


def _show_alarms(store: str | None, db: str | None, *, strict: bool, as_json: bool) -> int:
    """Show what needs attention; returns the exit code."""
    import asyncio

    from headwater.cli.alarm_look import look_once

    found = asyncio.run(look_once(store, db))
    if as_json:
        output.show_json(found)
    elif not found.alarms:
        output.say(f"Nothing needs attention ({found.store}).", "green")
    else:
        output.show_table(
            ["level", "since", "what", "cure"],
            [
                (
                    {"act": "act", "look": "check"}[one.level],
                    None if one.since_ms is None else output.time_text(one.since_ms),
                    f"{one.text} ({one.detail})" if one.detail else one.text,
                    one.cure,
                )
                for one in found.alarms
            ],
            styles={"act": "bold red", "check": "yellow"},
            fold=2,
        )
    must = any(one.level == "act" or strict for one in found.alarms)
    return 1 if must else 0


def _profile(profile: Profile | None) -> Iterator[Finding]:
    """Name the profile that was used, and what an environment variable says instead of it."""
    from headwater.store.doctor import Finding

    if profile is not None:
        found = f"{profile} sets {', '.join(profile.values) or 'nothing'}"
        if profile.instead:
            found += f"; set before, and so not by it: {', '.join(profile.instead)}"
        yield Finding("profile", found, "ok")


def _of_streams(report: DoctorReport, store: str | None) -> Iterator[Finding]:
    """Name what streams have lost, and who holds up retention though nobody has seen it for a day.

    A store without our functions has no streams, and would get the functions by a connection.
    """
    from headwater.store.doctor import Finding

    functions = [finding for finding in report.findings if finding.check == "functions"]
    ready = [f for f in functions if f.verdict == "ok" and not f.found.startswith("not loaded")]
    serves = all(f.verdict != "fail" or f.check in _DURABILITY for f in report.findings)
    streams: list[StreamInfo] = []
    if functions and ready == functions and serves:
        # A store that cannot be asked has findings of its own.
        with contextlib.suppress(StoreError), connected(store) as hw:
            streams = list(hw.store.run(views.overview.all_streams()))
    for facts in streams:
        if facts.missing:
            first, last = facts.missing[0]
            yield Finding(
                "messages",
                f"the store has lost messages {first} to {last} of stream {facts.name!r}",
                "warn",
                "restore the stream from a backup, or evict up to the last of them",
            )
        if facts.idle_holder is not None:
            hours = (facts.slowest_idle_ms or 0) // 3_600_000
            yield Finding(
                "retention",
                f"stream {facts.name!r} is held up at {facts.slowest_next} by "
                f"{facts.idle_holder!r}, which nobody has seen for {hours} hours",
                "warn",
                f"remove it, or: headwater stream retain {facts.name} --max-idle 7d",
            )
