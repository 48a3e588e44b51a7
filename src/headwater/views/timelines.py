"""Views of timelines and the farm they are on: records, instances, repairs and moves."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.timeline.records import (
    Cursor,
    InstanceStatus,
    Member,
    Record,
    Repaired,
    Written,
    exact,
)
from headwater.timeline.records import State as MemberState
from headwater.timeline.resharding import Estimate
from headwater.timeline.walker import Kind, State, WalkNote
from headwater.views.record import Mark, View, copied, mirror, text_field

TimelineWrittenView = mirror("TimelineWrittenView", Written)
RebuiltView = mirror("RebuiltView", Written, first={"stream": str, "messages": int})
EstimateView = mirror("EstimateView", Estimate)
# ``behind`` counts the elements that an instance lacks of the ``sampled`` timelines.
InstanceView = mirror("InstanceView", InstanceStatus, last={"sampled": int, "behind": int})
# ``unscanned`` names instances that could not be scanned.
WalkedView = mirror("WalkedView", Repaired, last={"unscanned": list[str], "whole": bool})
# ``left`` are instances that are no longer used.
MovedView = mirror("MovedView", Repaired, last={"cleaned": int, "left": list[str]})


class RecordView(View, frozen=True, kw_only=True):
    """An element of a timeline; ``cursor`` is there when it was read."""

    key: str
    key_encoding: Mark = UNSET
    # A whole number that JSON would shorten as a float is an int.
    score: int | float
    member: str
    member_encoding: Mark = UNSET
    cursor: str | UnsetType = UNSET

    @classmethod
    def of(cls, record: Record) -> RecordView:
        """Return the view of a record."""
        return cls(
            **text_field("key", record.key, "key_encoding"),
            score=exact(record.score),
            **text_field("member", record.member, "member_encoding"),
            cursor=str(Cursor.of(record)),
        )


class TimelineScoreView(View, frozen=True, kw_only=True):
    """The newest operation on a member; null without one. One that is not live was deleted."""

    key: str
    member: str
    member_encoding: Mark = UNSET
    score: int | float | None
    live: bool

    @classmethod
    def of(cls, key: str, member: Member, state: MemberState | None) -> TimelineScoreView:
        """Return the view of what is known of a member."""
        return cls(
            key=key,
            **text_field("member", member, "member_encoding"),
            score=None if state is None else exact(state.score),
            live=state is not None and not state.deleted,
        )


class WalkNoteView(View, frozen=True, kw_only=True):
    """A walk or a move of a farm as it noted itself: who runs it, how far it is, what it did.

    It has ``passed`` sorted sets of ``total``, ``per_s`` a second; ``left_s`` is how long it takes
    to the end at that rate, null when that is not known. Times are of the process that walks.
    """

    kind: Kind
    who: str
    state: State
    began_ms: int
    noted_ms: int
    passed: int
    total: int
    per_s: float
    left_s: float | None
    keys: int
    elements: int
    differing: int
    written: int
    failures: int
    trimmed: int
    forgotten: int
    unscanned: int

    @classmethod
    def of(cls, note: WalkNote) -> WalkNoteView:
        """Return the view of a note."""
        return cls(**copied(cls, note, **note.repaired._asdict()))
