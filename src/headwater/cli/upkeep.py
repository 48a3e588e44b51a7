"""Commands that look after a store: keep, doctor, scrub, repair and upgrade."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import (
    AsJson,
    LookedAtDatabase,
    StoreUrl,
    connected,
    grouped,
    known,
    queue_of,
)
from headwater.cli.server_options import MonitoringFlags
from headwater.errors import StoreError
from headwater.kernel.failures import store_may_recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headwater.kernel.profiles import Profile
    from headwater.log.types import StreamInfo
    from headwater.store.doctor import DoctorReport, Finding, StoreUpgrade
    from headwater.store.scrubbing import Defect, ScrubProgress, ScrubReport
    from headwater.views.stores import AlarmsView


if TYPE_CHECKING:
    from headwater.ick.types import KeptChannel
    from headwater.log.retention import Kept
    from headwater.queue.types import KeptQueue

# What each change says was done.
_STREAM_DEEDS = {
    "published": "finished {} publishes that were left",
    "sealed": "sealed {messages}",
    "cooled": "packed {messages} smaller",
    "expired": "gave up {messages}, expired",
    "buried": "moved {messages}, expired, to the dead letters",
    "producers": "removed {} producers that no longer write",
    "members": "removed {} members that are gone",
    "evicted": "evicted {messages}",
    "compacted": "compacted {messages} away",
}
_QUEUE_DEEDS = {
    "returned": "redelivers {messages}, not acknowledged in time",
    "buried": "gave up {messages} after the last attempt",
    "outlived": "dropped {messages} at the end of --ttl-ms",
    "producers": "removed {} producers that no longer push",
}
_CHANNEL_DEEDS = {"resharded": "finished {} change of the number of shards"}


@grouped
def keep(
    once: Annotated[bool, typer.Option("--once", help="End after one round.")] = False,
    interval: Annotated[float, typer.Option(min=0.01, help="Seconds between rounds.")] = 10.0,
    streams: Annotated[
        list[str] | None,
        typer.Option("--stream", metavar="STREAM", help="Only this stream; may be repeated."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="QUEUE", help="Only this queue; may be repeated."),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    *,
    monitoring: MonitoringFlags,
) -> None:
    """Seal nodes, apply retention, compact where asked for, and give up what has expired.

    In queues, messages that were not acknowledged in time are redelivered or given up. In channels
    of dirty lists, a change of the number of shards is completed.

    It runs until Ctrl-C or SIGTERM, prints a line for each change, and exits with 0. Any number may
    run at once. An object that cannot be kept is named, and the others are kept. With --once the
    exit code is then 1.
    """
    from headwater.client import keep_each
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop = StopSignal()
    with (
        connected(store, runs_on=not once) as hw,
        stop_on_signals(stop.set),
        monitoring.watched(store),
    ):
        for name in streams or ():
            known(hw, name)
        for name in queues or ():
            queue_of(hw, name)
        told: dict[str, str] = {}
        while not stop.is_set():
            faults: list[str] = []

            def tell_fault(fault: str, faults: list[str] = faults) -> None:
                faults.append(fault)
                output.warn(f"error: {fault}")

            try:
                for kept in keep_each(
                    hw, streams or (), queues or (), tell_fault=tell_fault, stop=stop.is_set
                ):
                    _show(kept, told, as_json)
            except StoreError as error:
                # A store that is down may be back in the next round.
                if once or not store_may_recover(error):
                    raise
                output.warn(f"error: {error}")
            if once:
                raise typer.Exit(1 if faults else 0)
            stop.wait(interval)


def _show(kept: Kept | KeptQueue | KeptChannel, told: dict[str, str], as_json: bool) -> None:
    """Print what was done to an object; who holds messages back is told once, by ``told``."""
    from headwater.log.retention import Kept
    from headwater.queue.types import KeptQueue

    if isinstance(kept, Kept):
        _warn_of_holder(kept, told)
        name, deeds = kept.stream, _STREAM_DEEDS
    elif isinstance(kept, KeptQueue):
        name, deeds = kept.queue, _QUEUE_DEEDS
    else:
        name, deeds = kept.channel, _CHANNEL_DEEDS
    for change in views.stores.changes_of(kept):
        messages = output.counted(change.count, "message")
        sentence = f"{name}: {deeds[change.change].format(change.count, messages=messages)}"
        output.answer(change, sentence, as_json)


def _warn_of_holder(kept: Kept, told: dict[str, str]) -> None:
    if kept.idle_holder and told.get(kept.stream) != kept.idle_holder:
        told[kept.stream] = kept.idle_holder
        output.warn(
            f"warning: stream {kept.stream!r}: {kept.held} messages are held for "
            f"{kept.idle_holder!r}, which nobody has seen for a day; remove it, or set an age "
            f"limit: headwater stream retain {kept.stream} --max-idle 7d"
        )


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


async def _alarms_now(store: str | None, db: str | None) -> AlarmsView:
    """Return the alarms of a store, and of the outbox of a database if one is given.

    Raises StoreError when the store does not answer.
    """
    from contextlib import AsyncExitStack

    from headwater.aio_client import connect
    from headwater.kernel.profiles import store_of
    from headwater.metrics.alarm_watch import AlarmWatch, FirstSeen
    from headwater.metrics.alarms import StoreFacts
    from headwater.metrics.sweeps import StoreWatch
    from headwater.serve.api.databases import open_database
    from headwater.views.stores import AlarmsView

    url = store_of(store, None)
    async with connect(url, wait_ms=0) as hw, AsyncExitStack() as opened:
        watch = StoreWatch(hw)
        facts = StoreFacts(watch, url)
        outbox = None
        if db is not None:
            outbox = opened.enter_context(open_database(db, url)).status
        facts.report()
        await watch.sample_now()
        await facts.close()
        sample = await watch.whole(60.0)
        alarms = AlarmWatch(watch, facts, FirstSeen(hw, writes=False), outbox=outbox)
        opened.push_async_callback(watch.close)
        found = await alarms.found(sample, once=True)
        return AlarmsView.of(store=hw.store.where, as_of_ms=sample.now_ms, alarms=found)


def _show_alarms(store: str | None, db: str | None, *, strict: bool, as_json: bool) -> int:
    """Show what needs attention; returns the exit code."""
    import asyncio

    found = asyncio.run(_alarms_now(store, db))
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


# The exit code when something is wrong; 1 is for what could not be done at all.
DEFECTS: Final = 3
INTERRUPTED: Final = 130
# How often progress is shown: on a terminal, and in a log.
_TERMINAL_S: Final = 0.2
_LOG_S: Final = 10.0

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only objects of these names.", show_default=False),
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="KIND",
        help="Only this kind: store, stream, topic, queue, ick or channel; may be repeated.",
        show_default=False,
    ),
]
ReadRate = Annotated[
    float | None,
    typer.Option(
        "--rate", min=0.001, metavar="MB/S", help="Read at most this many megabytes a second."
    ),
]


class ProgressLine:
    """Shows on standard error how far a scrub is: objects, bytes, the rate."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()

    def __call__(self, at: ScrubProgress) -> None:
        """Show it, unless something was shown just before."""
        now = time.monotonic()
        if now - self._shown < (_TERMINAL_S if self._terminal else _LOG_S):
            return
        self._shown = now
        rate = output.size_text(round(at.bytes / max(now - self._began, 0.001)))
        size = output.size_text(at.bytes)
        line = f"{at.objects} objects, {size}, {rate}/s, {at.defects} defects: {at.kind} {at.name}"
        if self._terminal:
            typer.echo(f"\r\x1b[K{output.readable(line)[:100]}", err=True, nl=False)
        else:
            output.warn(output.readable(line))

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            typer.echo("\r\x1b[K", err=True, nl=False)


def scrub(
    names: Names = None,
    kinds: Kinds = None,
    rate: ReadRate = None,
    archive: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Read the archives at this place instead of the store; names are streams.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Read the whole store, and report what is damaged or inconsistent.

    It changes nothing, and may run while the store is in use. Progress goes to standard error.
    Ctrl-C ends it with a report of what it has seen. The exit code is 0 when no damage was found, 3
    when something is wrong, 130 when it was interrupted before it found anything, and 1 when it
    could not be done.
    """
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop, progress = StopSignal(), ProgressLine()
    paced: Any = {"rate_mb_s": rate, "progress": progress, "stop": stop.is_set}
    with stop_on_signals(stop.set):
        if archive is not None:
            report, where = _scrub_archives(archive, names or (), kinds, paced)
        else:
            with connected(store) as hw:
                chosen: Any = kinds or ()
                report, where = hw.scrub(*(names or ()), kinds=chosen, **paced), hw.store.where
    progress.end()
    show_report(report, where, as_json)


def _scrub_archives(
    place: str, streams: Sequence[str], kinds: object, paced: Any
) -> tuple[ScrubReport, str]:
    from headwater.spark.archives.scrubbing import scrub_archives
    from headwater.spark.archives.table import absolute_place, safe_place

    if kinds:
        raise typer.BadParameter("--kind and --archive exclude each other")
    where = absolute_place(place)
    return scrub_archives(where, streams, **paced), safe_place(where)


def show_report(report: ScrubReport, where: str, as_json: bool) -> None:
    """Print what a scrub saw, and end with its exit code."""
    if as_json:
        output.show_json(views.stores.ScrubView.of(report, store=where))
    else:
        _show_scrub(report.defects)
        if report.more:
            output.say(f"and {report.more} more")
        for name in report.unsettled:
            output.say(f"{name}: in use; not all of its counts could be compared")
        seen = f"{report.objects} objects, {output.size_text(report.bytes)}"
        found = len(report.defects) + report.more
        word = "sound" if not found else f"{found} defects"
        output.say(f"{word}: {seen}{'' if report.complete else '; stopped before the end'}")
    _leave(bool(report.defects), report.complete)


def repair(
    names: Names = None,
    kinds: Kinds = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Repair; without it, only show what would be done.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Repair what `headwater scrub` reports, as far as possible.

    Without --yes it only shows what it would do. Each repair is one atomic step, made only if the
    object has not changed since it was checked, so the store may be in use. What cannot be repaired
    is shown with what else can be done. The exit code is 0 when nothing is left, else 3.
    """
    from headwater.kernel.stopping import StopSignal, stop_on_signals

    stop, progress = StopSignal(), ProgressLine()
    chosen: Any = kinds or ()
    with stop_on_signals(stop.set), connected(store) as hw:
        report = hw.repair(
            *(names or ()), kinds=chosen, dry_run=not yes, progress=progress, stop=stop.is_set
        )
        where = hw.store.where
    progress.end()
    if as_json:
        output.show_json(views.stores.RepairView.of(report, store=where, dry_run=not yes))
    else:
        for defect in report.repaired:
            output.say(f"repaired {_deed(defect)}")
        for defect in () if yes else report.left:
            if defect.repair is not None:
                output.say(f"would repair {_deed(defect)}")
        rest = [defect for defect in report.left if yes or defect.repair is None]
        _show_scrub(rest)
        left = "nothing is wrong" if not report.left else f"{len(report.left)} defects are left"
        more = "; --yes repairs" if not yes and len(rest) < len(report.left) else ""
        output.say(left + more + ("" if report.complete else "; stopped before the end"))
    _leave(bool(report.left), report.complete)


def _deed(defect: Defect) -> str:
    """Return what a repair does to which object."""
    what = defect.repair.what if defect.repair else ""
    return f"{defect.kind} {defect.name}, {defect.place}: {what}"


def _show_scrub(defects: Sequence[Defect]) -> None:
    if defects:
        output.show_table(
            ["object", "place", "expected", "found", "cure"],
            [(f"{d.kind} {d.name}", d.place, d.expected, d.found, d.cure) for d in defects],
            fold=4,
        )


def _leave(wrong: bool, complete: bool) -> None:
    raise typer.Exit(DEFECTS if wrong else 0 if complete else INTERRUPTED)


def upgrade(
    yes: Annotated[
        bool, typer.Option("--yes", help="Make the changes; without it they are only shown.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Do so while older clients are there; they are refused from then on."
        ),
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show which releases use the store, and what could be upgraded.

    With --yes, the store uses the newest format that this release understands from then on, unless
    clients that do not understand it were seen in the last ten minutes, and libraries of functions
    that no client was seen to use for 14 days are removed. There is no way back from a newer
    format.
    """
    from headwater.store import doctor
    from headwater.store.store import Store

    opened = Store.open(store, wait_s=0)
    try:
        if yes:
            doctor.upgrade(opened, force=force)
        found = doctor.examine_upgrade(opened)
    finally:
        opened.close()
    if as_json:
        output.show_json(views.stores.upgrade_view(found, done=yes))
    else:
        _show_upgrade(found)


def _show_upgrade(found: StoreUpgrade) -> None:
    from headwater.store.library import FORMAT

    output.show_table(
        ["release", "contract", "understands format", "seen"],
        [
            (kind.release, kind.version, kind.format, _ago(found.record.now_ms - kind.seen_ms))
            for kind in found.record.seen
        ],
    )
    libraries = ", ".join(f"headwater_{version}" for version in found.versions)
    output.say(f"The servers have {libraries}; format {found.record.format} is in use.")
    if found.raises_format:
        output.say(f"Format {FORMAT} could be put to use: run it again with --yes.")
        older = ", ".join(dict.fromkeys(kind.release for kind in found.older))
        if older:
            output.say(f"Clients of release {older} would be refused.")
    if found.unused:
        unused = ", ".join(f"headwater_{version}" for version in found.unused)
        output.say(f"Nobody was seen to use {unused}: --yes removes it.")
    if not (found.raises_format or found.unused):
        output.say("There is nothing to upgrade.", "green")


def _ago(ms: int) -> str:
    minutes = max(ms, 0) // 60_000
    if minutes < 120:
        return f"{minutes} min ago" if minutes else "now"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} days ago"
