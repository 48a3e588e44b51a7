"""What the model of a group is made of: its stream, what is pending, and what is drawn."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from headwater import Headwater, Message
from tests.support.groups import FAR
from tests.support.scrubbed import assert_streams_sound
from tests.support.watch import let_pass

ALL = 10**5
SIZES = st.sampled_from([1, 3, 9, 40, 600])
TAGS = st.sampled_from([3, 50, 5000])
SPANS = st.sampled_from([1, FAR])
PLACES = st.floats(-0.1, 1.1)
RANGES = st.lists(st.tuples(PLACES, st.integers(0, 40)), min_size=1, max_size=4)


@dataclass
class Pending:
    """One message that was delivered: how often, whether it is due again, whether it expired."""

    attempt: int
    due: bool
    expires: bool
    expired: bool


class StreamMachine(RuleBasedStateMachine):
    """The stream under a group, and what the model knows; the rules of the group come to it."""

    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.stream = self.client.stream(f"model-{secrets.token_hex(6)}")
        self.group = self.stream.group("g", member="m0")
        self.grave = f"{self.stream.name}.grave"
        self.members = [self.stream.group("g", member=f"m{i}") for i in (1, 2)]
        self.rows: dict[int, tuple[str, bytes, dict[str, bytes]]] = {}
        self.seen: dict[int, Message] = {}
        self.first, self.last = 1, 0
        self.max_pending, self.letters = 0, False
        self.begin()
        self.group.read(0)

    def begin(self) -> None:
        self.next = self.first
        self.pending: dict[int, Pending] = {}
        self.missed = self.expired = 0
        self.dead: Counter[int] = Counter()
        self.max_pending, self.letters = 0, False

    def teardown(self) -> None:
        assert_streams_sound(self.client, self.stream.name, self.grave)
        self.stream.delete()
        self.client.stream(self.grave).delete()

    def offset(self, place: float) -> int:
        return max(1, round(self.first + place * (self.last - self.first)))

    def spans(self, ranges: list[tuple[float, int]]) -> tuple[list[tuple[int, int]], set[int]]:
        spans = [(self.offset(place), self.offset(place) + more) for place, more in ranges]
        return spans, {offset for low, high in spans for offset in range(low, high + 1)}

    def pass_time(self, *spans: int | None) -> None:
        if 1 in spans:
            let_pass(self.client, 1)

    @rule(size=SIZES, tags=TAGS, headed=st.booleans())
    def write(self, size: int, tags: int, headed: bool) -> None:
        rows = [
            (f"t{i % tags}", b"%d" % (self.last + i), {"n": b"%d" % i} if headed and i % 3 else {})
            for i in range(size)
        ]
        for offset, row in zip(self.stream.write_many(rows), rows, strict=True):
            self.rows[offset] = row
            self.last = offset

    @rule(place=PLACES)
    def evict(self, place: float) -> None:
        limit = min(self.offset(place), self.last)
        self.stream.evict(limit)
        self.rows = {offset: row for offset, row in self.rows.items() if offset > limit}
        self.first = max(self.first, limit + 1)

    @rule()
    def seal(self) -> None:
        self.stream.seal()

    @rule()
    def compact(self) -> None:
        self.stream.compact()
        newest = {row[0]: offset for offset, row in sorted(self.rows.items())}
        self.rows = {offset: self.rows[offset] for offset in sorted(newest.values())}
