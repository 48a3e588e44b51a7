"""Timelines over HTTP, on servers that were given a farm: insert, delete, select, score.

Roshi's own server, with its paths and its JSON, is `headwater timeline serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import UNSET, Meta

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import Encoding, from_text
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.listing import timeline_part
from headwater.timeline.records import InstanceStatus, exact
from headwater.timeline.walker import read_notes
from headwater.views.record import Mark, View, mirror, text_field
from headwater.views.timelines import RecordView, TimelineWrittenView, WalkNoteView

if TYPE_CHECKING:
    from headwater.timeline.farm.aio_farm import AsyncFarm
    from headwater.timeline.records import Tuple

FarmInstanceView = mirror("FarmInstanceView", InstanceStatus)
_MOST: Final = 10_000


class FarmView(View, frozen=True, kw_only=True):
    """The instances of a farm, cluster by cluster, and the walks that it knows of.

    ``phase`` is settled, or copying or switching while the farm is moved.
    """

    instances: list[FarmInstanceView]  # type: ignore[valid-type]  # mirror makes it at run time
    phase: str
    walks: list[WalkNoteView]


class TimelinesWrittenView(View, frozen=True, kw_only=True):
    """What happened to inserts and deletes."""

    inserted: TimelineWrittenView  # type: ignore[valid-type]  # mirror makes it at run time
    deleted: TimelineWrittenView  # type: ignore[valid-type]


class TimelineView(View, frozen=True, kw_only=True):
    """Records of a timeline, the newest first; some may be missing while ``failures`` has any."""

    key: str
    records: list[RecordView]
    failures: list[str]


class TimelineScoreView(View, frozen=True, kw_only=True):
    """The newest operation on a member; null without one. One that is not live was deleted."""

    key: str
    member: str
    member_encoding: Mark = UNSET
    score: int | float | None
    live: bool


class RecordBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member of a timeline and its score, as a select shows them."""

    key: str
    score: int | float
    member: str
    member_encoding: Encoding | None = None


class TimelinesBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is inserted, and then what is deleted, of any timelines."""

    insert: Annotated[list[RecordBody], Meta(max_length=_MOST)] = []
    delete: Annotated[list[RecordBody], Meta(max_length=_MOST)] = []


class TimelineQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which records: by rank, or behind and before cursors of records."""

    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=1, le=_MOST)] = 10
    start: str | None = None
    stop: str | None = None


class MemberQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A member, as text or base64."""

    member: str
    encoding: Encoding | None = None


def _farm(call: ApiCall) -> AsyncFarm:
    if call.served.farm is None:
        raise Refused(404, "this server was given no timelines; start it with --farm FARM")
    return call.served.farm


def _member(text: str, encoding: Encoding | None) -> str | bytes:
    try:
        return from_text(text, encoding)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


async def get_farm(call: ApiCall) -> FarmView:
    """Show the instances of the farm: whether each is up, how much it holds, and its walks."""
    farm = _farm(call)
    found = await farm.status()
    return FarmView(
        instances=[FarmInstanceView.of(one) for one in found],
        phase=farm.layout.phase,
        walks=[WalkNoteView.of(note) for note in await read_notes(farm.clusters)],
    )


async def write_timelines(call: ApiCall) -> TimelinesWrittenView:
    """Insert members into timelines, and delete members; the later operation on a member counts.

    A write is done when a quorum of the clusters has it; a repeat does no harm. The token must
    allow to write every key.
    """
    farm = _farm(call)
    for key in {record.key for record in (*call.body.insert, *call.body.delete)}:
        call.require(Scope.WRITE, key)
    inserts, deletes = _tuples(call.body.insert), _tuples(call.body.delete)
    return TimelinesWrittenView(
        inserted=TimelineWrittenView.of(await farm.insert(inserts)),
        deleted=TimelineWrittenView.of(await farm.delete(deletes)),
    )


def _tuples(records: list[RecordBody]) -> list[Tuple]:
    return [(one.key, one.score, _member(one.member, one.member_encoding)) for one in records]


async def select_timeline(call: ApiCall) -> TimelineView:
    """Show records of a timeline, the newest first, each with its cursor.

    There are no more once their members have 4 MiB; the next request goes on by offset, or starts
    at the last cursor.
    """
    farm, query = _farm(call), call.query
    ranged = query.start is not None or query.stop is not None
    if ranged and query.offset:
        raise InvalidInput("offset goes with neither start nor stop; leave it out")
    found = await timeline_part(farm, call.name, query.offset, query.limit, query.start, query.stop)
    return TimelineView(
        key=call.name,
        records=[RecordView.of(record) for record in found.records],
        failures=[str(error) for error in found.failures],
    )


async def get_score(call: ApiCall) -> TimelineScoreView:
    """Show the newest operation on a member of a timeline, even when it was a delete."""
    member = _member(call.query.member, call.query.encoding)
    found = (await _farm(call).score([(call.name, member)]))[call.name, member]
    return TimelineScoreView(
        key=call.name,
        **text_field("member", member, "member_encoding"),
        score=None if found is None else exact(found.score),
        live=found is not None and not found.deleted,
    )


_ONE: Final = "/v1/timelines/{timeline}"
TIMELINE_ROUTES: Final = (
    Route("GET", "/v1/timelines", get_farm, Scope.READ, answer=FarmView, whole_store=True),
    Route(
        "POST",
        "/v1/timelines",
        write_timelines,
        Scope.WRITE,
        body=TimelinesBody,
        answer=TimelinesWrittenView,
    ),
    Route("GET", _ONE, select_timeline, Scope.READ, query=TimelineQuery, answer=TimelineView),
    Route(
        "GET",
        f"{_ONE}/score",
        get_score,
        Scope.READ,
        query=MemberQuery,
        answer=TimelineScoreView,
    ),
)
