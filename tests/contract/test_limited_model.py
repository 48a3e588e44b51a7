"""A group with limits against a model: never more than they allow, and never less without need.

The model knows who has which message. A read may deliver a message only if that exceeds no limit;
and when nothing comes, everything that nobody has must be of a tag that has reached its limit,
unless as many are in flight as may be in all.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from headwater import Headwater, Limits
from headwater.kernel.inputs import NO_LIMITS, Rate
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.groups import FAR
from tests.support.limit_rules import Deliveries, faster_than
from tests.support.tagged_group_machine import MEMBERS, PICKS, TaggedGroupMachine
from tests.support.watch import let_pass

FEW = st.sampled_from([1, 2, 7, None])
RATES = st.sampled_from([None, None, None, "200/s burst 3", "30/s"])


class LimitMachine(TaggedGroupMachine):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[Deliveries]] = {}

    @initialize(
        most=st.sampled_from([None, None, 3, 20]),
        of_key=FEW,
        rate=RATES,
        rate_of_key=RATES,
        ordered=st.booleans(),
    )
    def begin(
        self,
        most: int | None,
        of_key: int | None,
        rate: str | None,
        rate_of_key: str | None,
        ordered: bool,
    ) -> None:
        self.open_members(ordered=ordered)
        self.ordered = ordered
        self.limits = Limits(most, of_key, rate, rate_of_key)
        assert self.members[0].limit(self.limits) == NO_LIMITS
        assert self.members[0].info().limits == self.limits
        self.write(30, 4)

    def teardown(self) -> None:
        group = self.members[0]
        assert group.limit(NO_LIMITS) == self.limits
        group.nack(self.resting | self.held)
        while found := group.read(300, ack_ms=FAR):
            group.ack(found)
            self.open -= {message.offset for message in found}
        assert not self.open, "everything comes in the end"
        assert group.info().pending == 0
        assert not self.client.scrub(self.stream.name, kinds={"stream"}).defects
        self.assert_no_keys("flying", "tags", "keys", "lanes", "untagged", "buckets")
        self.stream.delete()
        for tag, deliveries in self.seen.items():
            text = self.limits.rate_per_key if tag else self.limits.rate
            if text is not None:
                rate = Rate.of(text, "rate")
                per_s = rate.messages * 1000 / rate.period_ms
                assert not faster_than(deliveries, per_s, rate.burst)

    def read_once(self, member: int, count: int, ack_ms: int = FAR) -> list[int]:
        """Read, and check what came against the limits; returns the offsets."""
        after = time.time()
        messages = self.members[member].read(count, ack_ms=ack_ms)
        before = time.time()
        found = [message.offset for message in messages]
        assert set(found) <= self.open - self.held - self.resting, "nobody has it"
        self.held |= set(found)
        by_tag = Counter(self.tags[offset] for offset in self.held)
        if self.limits.max_in_flight is not None:
            assert len(self.held) <= self.limits.max_in_flight
        if (most := self.limits.max_in_flight_per_key) is not None:
            assert all(count <= most for tag, count in by_tag.items() if tag)
        for tag, number in Counter(["", *(self.tags[o] for o in found if self.tags[o])]).items():
            total = len(found) if not tag else number
            if total:
                self.seen.setdefault(tag, []).append(Deliveries(after, before, total))
        return found

    @rule(size=st.sampled_from([1, 9, 40]), tags=st.integers(1, 9))
    def write(self, size: int, tags: int) -> None:
        self.write_tagged([f"t{n % tags}" if n % 7 else "" for n in range(size)])

    @rule(member=MEMBERS, count=st.sampled_from([1, 2, 5, 40, 1000]))
    def read(self, member: int, count: int) -> None:
        assert len(self.read_once(member, count)) <= count

    @rule(member=MEMBERS)
    def read_all(self, member: int) -> None:
        while self.read_once(member, 1000):
            pass
        limits, free = self.limits, self.open - self.held - self.resting
        full = limits.max_in_flight is not None and len(self.held) >= limits.max_in_flight
        if full or limits.rate or limits.rate_per_key:
            return
        by_tag = Counter(self.tags[offset] for offset in self.held)
        most = limits.max_in_flight_per_key
        waiting = {
            self.tags[offset]
            for offset in self.open
            if self.ordered and self.tags[offset] and offset in self.held | self.resting
        }
        left = {
            offset
            for offset in free
            if not (tag := self.tags[offset])
            or ((most is None or by_tag[tag] < most) and tag not in waiting)
        }
        assert not left, "what exceeds no limit comes"

    @rule(member=MEMBERS, count=st.integers(1, 20))
    def read_and_die(self, member: int, count: int) -> None:
        found = self.read_once(member, count, ack_ms=1)
        let_pass(self.client, 1)
        self.held -= set(found)

    @rule(member=MEMBERS, picks=PICKS, whole=st.booleans())
    def ack(self, member: int, picks: list[int], whole: bool) -> None:
        done = sorted(self.held) if whole else self.some(self.held, picks)
        assert self.members[member].ack(done) == len(done)
        self.forget(done)
        self.read_all(member)

    @rule(picks=PICKS)
    def ack_what_waits(self, picks: list[int]) -> None:
        offsets = self.some(self.open - self.held, picks)
        self.members[0].ack(offsets)
        self.forget([o for o in offsets if o < self.members[0].info().next])

    def forget(self, done: list[int]) -> None:
        for each in (self.open, self.held, self.resting):
            each -= set(done)

    @rule(picks=PICKS)
    def extend(self, picks: list[int]) -> None:
        held = self.some(self.held, picks)
        assert self.members[2].extend(held, ack_ms=FAR) == len(held)

    @rule(picks=PICKS)
    def bury_and_redrive(self, picks: list[int]) -> None:
        if buried := self.some(self.held, picks):
            assert self.members[0].bury(buried, error="never") == len(buried)
            assert self.members[0].redrive().redriven == len(buried)
            self.held -= set(buried)


@patient
@pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)
def test_a_group_with_limits_obeys_its_model(client: Headwater) -> None:
    machine = type("Machine", (LimitMachine,), {"client": client})
    run_state_machine_as_test(machine, settings=MODEL_SETTINGS)
