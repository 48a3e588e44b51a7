"""The records that dirty lists return to their users."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias, TypedDict

from headwater.ick.keys import Member
from headwater.kernel.declaring import Param, Spelling

Place: TypeAlias = Literal["pset", "cset", "ready", "later", "reserved"]


class Added(NamedTuple):
    """What an add did: how many members were new, and how many scores fell."""

    new: int
    lowered: int


class IckScores(TypedDict, total=False):
    """Between which scores the sets of an Ick are; left out where a set is empty."""

    pset_min: float
    pset_max: float
    cset_min: float
    cset_max: float
    total_min: float
    total_max: float


class IckStats(IckScores):
    """How an Ick stands, by the names of redis-ick."""

    key: str
    pset_key: str
    cset_key: str
    ver: str
    cset_size: int
    pset_size: int
    total_size: int


class Scored(NamedTuple):
    """A member of a dirty list, and its score."""

    member: Member
    score: float


# As doors show it; no record is made for each of many members.
ScoredMember: TypeAlias = Annotated[tuple[Member, float], Scored]


class Listed(NamedTuple):
    """A member of a dirty list, and where it is.

    ``place`` is "pset" or "cset" in an Ick, and "ready", "later" or "reserved" in a channel.
    ``shard`` is None in an Ick.
    """

    member: Member
    score: float
    place: Place
    shard: int | None = None


class Reserved(NamedTuple):
    """A member that was reserved; ``generation`` distinguishes this time from any other."""

    member: Member
    score: float
    generation: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What a consumer of a channel has reserved of one shard, under one lease.

    Falsy, and without a shard, when there was nothing. ``token`` fences it: once another consumer
    has taken the shard over, it can change nothing. ``until_ms`` is when the lease runs out unless
    it is renewed, by the server's clock.
    """

    channel: str
    epoch: int = 0
    shard: int = -1
    token: int = 0
    until_ms: int = 0
    reserved: tuple[Reserved, ...] = ()

    def __len__(self) -> int:
        return len(self.reserved)

    def __iter__(self) -> Iterator[Reserved]:
        return iter(self.reserved)

    @property
    def members(self) -> list[Member]:
        """The members alone, lowest score first."""
        return [row.member for row in self.reserved]


# As commit, release and renew take it: what reserve answered.
GivenBatch: TypeAlias = Annotated[
    Batch,
    Param("batches as reserve --json printed them, one a line.", Spelling.DOCUMENT, called="batch"),
]


class Lease(NamedTuple):
    """Which consumer holds a shard, until when by the server's clock, and with how many members."""

    shard: int
    consumer: str
    token: int
    until_ms: int
    left_ms: int
    reserved: int


class ShardStats(NamedTuple):
    """The state of a shard: members in each state, and how long the oldest has waited.

    ``added`` is how many members were given to adds since the shard began, ``entered`` how many of
    them were not dirty before; the others were folded.
    """

    shard: int
    ready: int
    later: int
    reserved: int
    waited_ms: int
    lease: Lease | None
    closed: bool
    added: int
    entered: int


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """The state of a channel.

    ``left_behind`` are the shards of the old layout, while their members move.
    """

    SHOWN: ClassVar = ("ready", "later", "reserved", "waited_ms", "added", "entered", "folding")

    name: str
    shards: tuple[ShardStats, ...]
    left_behind: tuple[ShardStats, ...]

    @property
    def ready(self) -> int:
        """How many members wait to be reserved."""
        return sum(shard.ready for shard in self._all())

    @property
    def later(self) -> int:
        """How many members wait for their time."""
        return sum(shard.later for shard in self._all())

    @property
    def reserved(self) -> int:
        """How many members are reserved and not committed."""
        return sum(shard.reserved for shard in self._all())

    @property
    def waited_ms(self) -> int:
        """How long the longest waiting member has waited."""
        return max((shard.waited_ms for shard in self._all()), default=0)

    @property
    def added(self) -> int:
        """How many members were given to adds since the shards began; a repeat counts again."""
        return sum(shard.added for shard in self._all())

    @property
    def entered(self) -> int:
        """How many of those were not dirty before."""
        return sum(shard.entered for shard in self._all())

    @property
    def folding(self) -> float | None:
        """How many adds one piece of work stands for: ``added / entered``; None before the first.

        A channel that changes its number of shards starts counting again.
        """
        return self.added / self.entered if self.entered else None

    def _all(self) -> tuple[ShardStats, ...]:
        return self.shards + self.left_behind


class KeptChannel(NamedTuple):
    """A channel whose number of shards is being changed, and what housekeeping did.

    ``settled`` says that the change is over; else ``leases`` shards of the layout before are still
    leased, which is waited for. ``fault`` says why nothing could be done.
    """

    channel: str
    settled: bool
    leases: int
    fault: str | None = None


class Layout(NamedTuple):
    """How many shards a channel has.

    ``settled`` is False while members still move there; then ``leases`` is how many shards of the
    layout before are still leased, which is waited for.
    """

    shards: int
    settled: bool
    leases: int
