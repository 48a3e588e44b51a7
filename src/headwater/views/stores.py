"""Views of a store: state, alarms, housekeeping, scrubs, tokens, jobs of servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from headwater.ick.types import KeptChannel
from headwater.log.retention import Kept
from headwater.queue.types import KeptQueue
from headwater.store.doctor import DoctorReport, Finding, StoreUpgrade, Verdict
from headwater.store.embedded import EmbeddedStatus
from headwater.store.library import FORMAT, VERSION
from headwater.store.presence import ServerJob
from headwater.store.scrubbing import Defect, ScrubReport
from headwater.views.record import View, copied, mirror
from headwater.whole_store.letters import LetterCount, LettersMoved
from headwater.whole_store.scrubbing import RepairReport

# ── Stores ────────────────────────────────────────────────────────────────────────────────────────


# ── Stores ────────────────────────────────────────────────────────────────────────────────────────


class EmbeddedView(View, frozen=True, kw_only=True):
    """The server of a data directory; ``pid`` and ``version`` are None unless it answers."""

    directory: str
    running: bool
    loading: bool
    stays: bool
    socket: str
    pid: int | None
    version: str | None

    @classmethod
    def of(cls, status: EmbeddedStatus) -> EmbeddedView:
        """Return the view of what is known of a server."""
        return cls(**copied(cls, status, directory=str(status.directory)))


class FindingView(View, frozen=True, kw_only=True):
    """One thing that the doctor checked; ``server`` names the node of a cluster, or is empty."""

    check: str
    found: str
    verdict: Verdict
    cure: str
    server: str

    @classmethod
    def of(cls, finding: Finding) -> FindingView:
        """Return the view of a finding."""
        return cls(**copied(cls, finding))


class DoctorView(View, frozen=True, kw_only=True):
    """All that the doctor found; ``rights`` are those that the user of the store needs."""

    store: str
    verdict: Verdict
    summary: str
    checks: list[FindingView]
    rights: str

    @classmethod
    def of(cls, report: DoctorReport) -> DoctorView:
        """Return the view of the doctor's report."""
        return cls(
            store=report.where,
            verdict=report.verdict,
            summary=report.summary,
            checks=[FindingView.of(finding) for finding in report.findings],
            rights=report.rules,
        )


class ClientKindView(View, frozen=True, kw_only=True):
    """A kind of client: release, version of its contract, newest format it knows, when it was seen.

    ``older`` says that it does not understand the newest format of the release that looks.
    """

    release: str
    contract: int
    format: int
    seen_ms: int
    older: bool


class UpgradeView(View, frozen=True, kw_only=True):
    """How a store stands between releases: its format, the clients that were seen, its libraries.

    ``newest_format`` and ``contract`` are those of the release that looks; ``unused`` are the
    versions of the library that no client was seen to use; ``done``: the upgrade was made.
    """

    store: str
    format: int
    newest_format: int
    contract: int
    clients: list[ClientKindView]
    libraries: list[int]
    unused: list[int]
    done: bool

    @classmethod
    def of(cls, found: StoreUpgrade, *, done: bool) -> UpgradeView:
        """Return the view of how a store stands."""
        return cls(
            store=found.where,
            format=found.record.format,
            newest_format=FORMAT,
            contract=VERSION,
            clients=[
                ClientKindView(
                    release=kind.release,
                    contract=kind.version,
                    format=kind.format,
                    seen_ms=kind.seen_ms,
                    older=kind in found.older,
                )
                for kind in found.record.seen
            ],
            libraries=list(found.versions),
            unused=list(found.unused),
            done=done,
        )


# ── Housekeeping ──────────────────────────────────────────────────────────────────────────────────
# Views of what housekeeping did: one record for each change.


# The counts of a report, in the order in which the work is done.
STREAM_CHANGES = (
    "published",
    "sealed",
    "cooled",
    "expired",
    "buried",
    "producers",
    "members",
    "evicted",
    "compacted",
)
QUEUE_CHANGES = ("returned", "buried", "outlived", "producers")


class StreamChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a stream: to how many messages, publishes, producers or members."""

    stream: str
    change: str
    count: int

    @classmethod
    def all_of(cls, kept: Kept) -> Iterator[StreamChangeView]:
        """Yield a view for each change that was made."""
        for change in STREAM_CHANGES:
            if count := getattr(kept, change):
                yield cls(stream=kept.stream, change=change, count=count)


class QueueChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a queue: to how many messages or producers."""

    queue: str
    change: str
    count: int

    @classmethod
    def all_of(cls, kept: KeptQueue) -> Iterator[QueueChangeView]:
        """Yield a view for each change that was made."""
        for change in QUEUE_CHANGES:
            if count := getattr(kept, change):
                yield cls(queue=kept.queue, change=change, count=count)


class ChannelChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a channel: it finished a change of the number of shards."""

    channel: str
    change: str = "resharded"
    count: int = 1

    @classmethod
    def all_of(cls, kept: KeptChannel) -> Iterator[ChannelChangeView]:
        """Yield a view when a change of shards was finished."""
        if kept.settled:
            yield cls(channel=kept.channel)


# ── Scrubs ────────────────────────────────────────────────────────────────────────────────────────
# Views of what a scrub saw, and of what a repair did.


class DefectView(View, frozen=True, kw_only=True):
    """What is wrong with an object; ``repairable`` says whether ``headwater repair`` cures it."""

    kind: str
    name: str
    place: str
    expected: str
    found: str
    cure: str
    repairable: bool

    @classmethod
    def of(cls, defect: Defect) -> DefectView:
        """Return the view of a defect."""
        return cls(**copied(cls, defect, repairable=defect.repair is not None))


class ScrubView(View, frozen=True, kw_only=True):
    """What a scrub saw; ``more`` defects were only counted."""

    store: str
    objects: int
    bytes: int
    complete: bool
    unsettled: list[str]
    more: int
    defects: list[DefectView]

    @classmethod
    def of(cls, report: ScrubReport, store: str) -> ScrubView:
        """Return the view of a scrub's report."""
        defects = [DefectView.of(defect) for defect in report.defects]
        unsettled = list(report.unsettled)
        return cls(**copied(cls, report, store=store, defects=defects, unsettled=unsettled))


class RepairView(View, frozen=True, kw_only=True):
    """What a repair did, or would do in a dry run, which leaves everything."""

    store: str
    dry_run: bool
    complete: bool
    repaired: list[DefectView]
    left: list[DefectView]

    @classmethod
    def of(cls, report: RepairReport, store: str, *, dry_run: bool) -> RepairView:
        """Return the view of a repair's report."""
        return cls(
            store=store,
            dry_run=dry_run,
            complete=report.complete,
            repaired=[DefectView.of(defect) for defect in report.repaired],
            left=[DefectView.of(defect) for defect in report.left],
        )


# ── Tokens ────────────────────────────────────────────────────────────────────────────────────────
# Views of the tokens of a server; the token itself is shown once, when it is made.


class TokenView(View, frozen=True, kw_only=True):
    """A token of a file: whose it is, and the patterns of names that each scope is given on."""

    holder: str
    read: list[str]
    write: list[str]
    admin: list[str]


class TokenCreatedView(View, frozen=True, kw_only=True):
    """A token that was made. Its file has only the digest: nobody can show it again."""

    holder: str
    token: str


class TokenRemovedView(View, frozen=True, kw_only=True):
    """A token that was removed; servers refuse it within a second."""

    holder: str
    removed: bool = True


# ── Server jobs ───────────────────────────────────────────────────────────────────────────────────
# Views of the jobs that servers run: what each does, and how far it is.


# So many places of a job are named; the others are counted.
_NAMED = 3


class ServerJobView(View, frozen=True, kw_only=True):
    """A job of a server: ``done`` of ``total``, which is null when that is not known before."""

    job: str
    kind: str
    state: str
    who: str
    what: str
    done: int
    total: int | None
    error: str | None
    noted_ms: int

    @classmethod
    def of(cls, job: ServerJob) -> ServerJobView:
        """Return the view of a job."""
        what, done, total = _described(job.kind, job.details)
        return cls(
            job=job.id,
            kind=job.kind,
            state=job.state,
            who=job.who,
            what=what,
            done=done,
            total=total,
            error=job.details.get("error"),
            noted_ms=job.noted_ms,
        )


LetterCountView = mirror("LetterCountView", LetterCount)
LettersMovedView = mirror("LettersMovedView", LettersMoved)


def _described(kind: str, facts: dict[str, Any]) -> tuple[str, int, int | None]:
    """Return what a job does, how much is done, and of how much."""
    if kind == "letters":
        where = "all groups and queues" if facts.get("everywhere") else _places(facts)
        what = f"{facts.get('action', 'move')} dead letters of {where}"
        return what, int(facts.get("done", 0)), facts.get("total") or None
    if kind == "replay":
        first, last = int(facts.get("first", 0)), int(facts.get("last", 0))
        what = f"replay {first}-{last} of {facts.get('source')} into {facts.get('into')}"
        return what, max(int(facts.get("next", first)) - first, 0), max(last - first + 1, 0)
    if kind == "scrub":
        return f"{facts.get('what', 'scrub')} the store", int(facts.get("objects", 0)), None
    return kind, 0, None


def _places(facts: dict[str, Any]) -> str:
    named = [
        one["queue"] if one.get("queue") else f"{one.get('stream')} / {one.get('group')}"
        for one in facts.get("places", [])
    ]
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# ── Alarms ────────────────────────────────────────────────────────────────────────────────────────
# Views of alarms: what somebody should look at or do.


class AlarmView(View, frozen=True, kw_only=True):
    """Something that somebody should look at (``look``) or do something about (``act``).

    ``about`` is the kind of the object and its names. ``since_ms`` is when it began, or, with
    ``first_seen``, when it was first seen; None when that is not known.
    """

    level: Literal["act", "look"]
    kind: str
    about: tuple[str, ...]
    text: str
    detail: str
    cure: str
    promise: str
    since_ms: int | None
    first_seen: bool
    amount: int

    @classmethod
    def of(cls, alarm: object) -> AlarmView:
        """Return the view of an alarm."""
        return cls(**copied(cls, alarm))


class AlarmsView(View, frozen=True, kw_only=True):
    """All alarms of a store as of a moment, what needs an act first."""

    store: str
    as_of_ms: int
    alarms: list[AlarmView]

    @classmethod
    def of(cls, store: str, as_of_ms: int, alarms: Iterable[object]) -> AlarmsView:
        """Return the view of the alarms of a store."""
        return cls(store=store, as_of_ms=as_of_ms, alarms=[AlarmView.of(one) for one in alarms])
