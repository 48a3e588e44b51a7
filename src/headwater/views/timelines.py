"""Views of timelines and the farm they are on: records, instances, repairs and moves."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.text_or_base64 import from_text
from headwater.timeline.records import (
    Cursor,
    InstanceStatus,
    Record,
    Tuple,
    Written,
)
from headwater.timeline.resharding.resharder import Estimate, ReshardResult
from headwater.timeline.walker.sampling import Sample
from headwater.timeline.walker.walker import Walked
from headwater.views.record import Mark, View, copied, encoding_of, mirror, text_field

TimelineWrittenView = mirror("TimelineWrittenView", Written)
RebuiltView = mirror("RebuiltView", Written, first={"stream": str, "messages": int})
EstimateView = mirror("EstimateView", Estimate)


class RecordView(View, frozen=True, kw_only=True):
    """An element of a timeline; ``cursor`` is there when it was read."""

    key: str
    key_encoding: Mark = UNSET
    # As given: an int that no double holds is refused, not rounded.
    score: int | float
    member: str
    member_encoding: Mark = UNSET
    cursor: str | UnsetType = UNSET

    @classmethod
    def of(cls, record: Record) -> RecordView:
        """Return the view of a record."""
        return cls(
            **text_field("key", record.key, "key_encoding"),
            score=record.score,
            **text_field("member", record.member, "member_encoding"),
            cursor=str(Cursor.of(record)),
        )

    def entry(self) -> Tuple:
        """Return key, score and member, for an insert; raises ValueError for no base64."""
        return (
            from_text(self.key, encoding_of(self.key_encoding)),
            self.score,
            from_text(self.member, encoding_of(self.member_encoding)),
        )


class InstanceView(View, frozen=True, kw_only=True):
    """How an instance is; ``behind`` counts the elements it lacks of the ``sampled`` timelines."""

    instance: str
    up: bool
    keys: int
    memory_bytes: int
    fault: str
    cluster: int
    sampled: int
    behind: int

    @classmethod
    def of(cls, status: InstanceStatus, sample: Sample) -> InstanceView:
        """Return the view of an instance and of how far it is behind."""
        return cls(**copied(cls, status, sampled=sample.keys, behind=sample.behind))


class WalkedView(View, frozen=True, kw_only=True):
    """What a round of the walker did; ``unscanned`` names instances that could not be scanned."""

    keys: int
    elements: int
    differing: int
    written: int
    failures: int
    trimmed: int
    forgotten: int
    unscanned: list[str]
    whole: bool

    @classmethod
    def of(cls, walked: Walked) -> WalkedView:
        """Return the view of a round."""
        own = {"unscanned": sorted(walked.unscanned), "whole": walked.whole}
        return cls(**copied(cls, walked.repaired, **own))


class MovedView(View, frozen=True, kw_only=True):
    """What a move of a farm did; ``left`` are instances that are no longer used."""

    keys: int
    elements: int
    differing: int
    written: int
    failures: int
    trimmed: int
    forgotten: int
    cleaned: int
    left: list[str]

    @classmethod
    def of(cls, moved: ReshardResult) -> MovedView:
        """Return the view of a move."""
        return cls(**copied(cls, moved.repaired, cleaned=moved.cleaned, left=moved.left))
