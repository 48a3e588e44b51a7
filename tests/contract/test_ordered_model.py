"""A group that keeps order against a model: what is delivered, and what waits for its turn.

The model knows who has which message, and which are done. A read may deliver a message only if
nobody has it and all before it of its tag are done, or come with it; and when nothing more comes,
the first message of each tag that nobody has must have come. The first member keeps the order of
what it has by itself, as a worker does: it may get the messages after those, up to one that failed.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from headwater import Headwater
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.groups import FAR
from tests.support.tagged_group_machine import MEMBERS, PICKS, TaggedGroupMachine
from tests.support.watch import let_pass


class OrderMachine(TaggedGroupMachine):
    def __init__(self) -> None:
        super().__init__()
        self.open_members(ordered=True)
        self.redriven: set[int] = set()
        self.by_first: set[int] = set()
        self.members[0].keep_order(lambda: sorted(self.owned()))
        self.members[0].read(0)

    def teardown(self) -> None:
        group = self.members[0]
        group.nack(self.resting | self.held)
        self.resting, self.held = set(), set()
        while found := self.check(group.read(300, ack_ms=FAR)):
            group.ack(found)
            self.open -= set(found)
            self.held -= set(found)
        assert not self.open, "everything comes in the end"
        assert group.info().pending == 0
        self.stream.write("last", b"v")
        group.ack(group.read(1, ack_ms=FAR))
        report = self.client.scrub(self.stream.name, kinds={"stream"})
        assert not report.defects
        self.assert_no_keys("tags", "keys", "lanes", "untagged")
        self.stream.delete()

    def check(self, messages: list, *, first: bool = False) -> list[int]:  # type: ignore[type-arg]
        """Check what one read delivered against the rule; returns the offsets."""
        found: list[int] = [message.offset for message in messages]
        owned = self.owned() if first else set()
        assert found == sorted(set(found))
        for at, offset in enumerate(found):
            assert offset in self.open, "nothing comes that is done"
            assert offset not in self.held | self.resting, "nobody has it"
            if self.tags[offset] and offset not in self.redriven:
                before = {
                    each
                    for each in self.open - self.redriven
                    if each < offset and self.tags[each] == self.tags[offset]
                }
                assert before <= owned | set(found[:at]), "nothing is overtaken"
        self.held |= set(found)
        self.by_first = self.by_first | set(found) if first else self.by_first - set(found)
        return found

    def owned(self) -> set[int]:
        """Return what the first member has, and nothing that is behind what it has no more."""
        mine, lost = self.by_first & self.held, set[str]()
        owned: set[int] = set()
        for offset in sorted(self.open - self.redriven):
            if self.tags[offset] not in lost and offset in mine:
                owned.add(offset)
            elif self.tags[offset]:
                lost.add(self.tags[offset])
        return owned

    @initialize(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=3), tags=st.integers(1, 6))
    def begin(self, sizes: list[int], tags: int) -> None:
        for size in sizes:
            self.write(size, tags, 1)

    @rule(size=st.sampled_from([1, 2, 9, 40, 520]), tags=st.integers(1, 9), step=st.integers(1, 4))
    def write(self, size: int, tags: int, step: int) -> None:
        self.write_tagged([f"t{n * step % tags}" if n % 7 else "" for n in range(size)])

    @rule(member=MEMBERS, count=st.sampled_from([1, 2, 5, 40, 1000]))
    def read(self, member: int, count: int) -> None:
        assert len(self.take(member, count)) <= count

    def take(self, member: int, count: int) -> list[int]:
        return self.check(self.members[member].read(count, ack_ms=FAR), first=member == 0)

    @rule(member=MEMBERS)
    def read_all(self, member: int) -> None:
        while self.take(member, 1000):
            pass
        heads: dict[str, int] = {}
        for offset in sorted(self.open):
            heads.setdefault(self.tags[offset] or f"without {offset}", offset)
        busy = {self.tags[offset] for offset in self.held | self.resting if self.tags[offset]}
        left = {offset for offset in heads.values() if self.tags[offset] not in busy}
        left -= self.held | self.resting
        assert not left, "the first of each tag comes, if nobody has a message of it"

    @rule(member=MEMBERS, count=st.integers(1, 20))
    def read_and_die(self, member: int, count: int) -> None:
        found = self.check(self.members[member].read(count, ack_ms=1), first=member == 0)
        let_pass(self.client, 1)
        self.held -= set(found)

    @rule(member=MEMBERS, picks=PICKS, whole=st.booleans())
    def ack(self, member: int, picks: list[int], whole: bool) -> None:
        done = sorted(self.held) if whole else self.some(self.held, picks)
        assert self.members[member].ack(done) == len(done)
        self.forget(done)

    @rule(picks=PICKS)
    def ack_what_waits(self, picks: list[int]) -> None:
        offsets = self.some(self.open - self.held, picks)
        before = self.members[0].info()
        done = [offset for offset in offsets if offset < before.next]
        assert self.members[0].ack(offsets) == len(done)
        self.forget(done)

    def forget(self, done: list[int]) -> None:
        for each in (self.open, self.held, self.resting, self.redriven):
            each -= set(done)

    @rule(picks=PICKS, back=st.booleans())
    def bury(self, picks: list[int], back: bool) -> None:
        buried = self.some(self.held, picks)
        if buried:
            assert self.members[0].bury(buried, error="never") == len(buried)
            self.forget(buried)
        if back:
            letters = {letter.origin for letter in self.members[0].dead(1000)}
            self.members[0].redrive()
            self.open |= letters
            self.redriven |= letters

    @rule()
    def seal(self) -> None:
        self.stream.seal()


@patient
@pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)
def test_a_group_that_keeps_order_obeys_its_model(client: Headwater) -> None:
    machine = type("Machine", (OrderMachine,), {"client": client})
    run_state_machine_as_test(machine, settings=MODEL_SETTINGS)
