"""Views of a store: state, alarms, housekeeping, scrubs, tokens, jobs of servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

from headwater.ick.types import KeptChannel
from headwater.log.retention import Kept
from headwater.queue.types import KeptQueue
from headwater.store.doctor import DoctorReport, Finding, StoreUpgrade, Verdict
from headwater.store.embedded import EmbeddedStatus
from headwater.store.library import FORMAT, VERSION
from headwater.store.presence import ServerJob
from headwater.store.scrubbing import ScrubReport
from headwater.views.record import Mirror, View, mirror
from headwater.whole_store.letters import LetterCount, LettersMoved
from headwater.whole_store.scrubbing import RepairReport

EmbeddedView = mirror("EmbeddedView", EmbeddedStatus, types={"directory": str})
FindingView = mirror("FindingView", Finding)
DoctorView = mirror(
    "DoctorView",
    DoctorReport,
    names={"where": "store", "findings": "checks", "rules": "rights"},
    types={"findings": list[FindingView]},  # type: ignore[valid-type]  # made at run time
    last={"verdict": Verdict, "summary": str},
)
LetterCountView = mirror("LetterCountView", LetterCount)
LettersMovedView = mirror("LettersMovedView", LettersMoved)


class DefectView(Mirror, frozen=True, kw_only=True):
    """What is wrong with an object; ``repairable`` says whether ``headwater repair`` cures it."""

    kind: str
    name: str
    place: str
    expected: str
    found: str
    cure: str
    repairable: bool


_SHOWN_DEFECTS: Final = {"defects": list[DefectView], "unsettled": list[str]}
ScrubView = mirror("ScrubView", ScrubReport, first={"store": str}, types=_SHOWN_DEFECTS)
RepairView = mirror(
    "RepairView",
    RepairReport,
    first={"store": str, "dry_run": bool},
    types={"repaired": list[DefectView], "left": list[DefectView]},
)


class ClientKindView(Mirror, frozen=True, kw_only=True):
    """A kind of client: release, version of its contract, newest format it knows, when it was seen.

    ``older`` says that it does not understand the newest format of the release that looks.
    """

    release: str
    contract: int
    format: int
    seen_ms: int
    older: bool


class UpgradeView(Mirror, frozen=True, kw_only=True):
    """How a store stands between releases: its format, the clients that were seen, its libraries.

    ``newest_format`` and ``contract`` are those of the release that looks; ``unused`` are the
    versions of the library that no client was seen to use; ``done``: the upgrade was made.
    """

    store: str
    format: int
    newest_format: int = FORMAT
    contract: int = VERSION
    clients: list[ClientKindView]
    libraries: list[int]
    unused: list[int]
    done: bool


def upgrade_view(found: StoreUpgrade, *, done: bool) -> UpgradeView:
    """Return the view of how a store stands."""
    clients = [
        ClientKindView.of(kind, contract=kind.version, older=kind in found.older)
        for kind in found.record.seen
    ]
    own = {"store": found.where, "clients": clients, "libraries": found.versions}
    return UpgradeView.of(found, found.record, done=done, **own)


# The counts of a report, in the order in which the work is done.
STREAM_CHANGES: Final = (
    *("published", "sealed", "cooled", "expired", "buried", "producers", "members", "evicted"),
    "compacted",
)
QUEUE_CHANGES: Final = ("returned", "buried", "outlived", "producers")


class StreamChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a stream: to how many messages, publishes, producers or members."""

    stream: str
    change: str
    count: int


class QueueChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a queue: to how many messages or producers."""

    queue: str
    change: str
    count: int


class ChannelChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a channel: it finished a change of the number of shards."""

    channel: str
    change: str = "resharded"
    count: int = 1


ChangeView = StreamChangeView | QueueChangeView | ChannelChangeView


def changes_of(kept: Kept | KeptQueue | KeptChannel) -> Iterator[ChangeView]:
    """Yield a view for each change that housekeeping made to an object."""
    if isinstance(kept, KeptChannel):
        if kept.settled:
            yield ChannelChangeView(channel=kept.channel)
        return
    for change in STREAM_CHANGES if isinstance(kept, Kept) else QUEUE_CHANGES:
        if not (count := getattr(kept, change)):
            continue
        if isinstance(kept, Kept):
            yield StreamChangeView(stream=kept.stream, change=change, count=count)
        else:
            yield QueueChangeView(queue=kept.queue, change=change, count=count)


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


# So many places of a job are named; the others are counted.
_NAMED: Final = 3


class ServerJobView(Mirror, frozen=True, kw_only=True):
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


def job_view(job: ServerJob) -> ServerJobView:
    """Return the view of a job."""
    what, done, total = _described(job.kind, job.details)
    error = job.details.get("error")
    return ServerJobView.of(job, job=job.id, what=what, done=done, total=total, error=error)


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


class AlarmView(Mirror, frozen=True, kw_only=True):
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


class AlarmsView(Mirror, frozen=True, kw_only=True):
    """All alarms of a store as of a moment, what needs an act first."""

    store: str
    as_of_ms: int
    alarms: list[AlarmView]
