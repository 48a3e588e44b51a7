"""One group with every feature at once, against a model of its promises.

Order, limits, letters, expiry, seeks, pauses, compaction, eviction, housekeeping, members that die
and a clock that is set back meet in few tags and few members, so that their states collide. The
server's clock stands still unless a rule moves it, so deadlines and rates are judged exactly; on
the machine's own clock nothing falls due during a run, and no rate is set. At the end of each run
everything that is left must come, within a few reads, and no key of tags or limits must stay.
"""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headwater import Group, Headwater, Limits
from headwater.kernel.failures import Failure
from headwater.kernel.inputs import NO_LIMITS
from tests.support.crossed_group import CrossedGroup
from tests.support.entries import offsets
from tests.support.examples import MODEL_SETTINGS, patient
from tests.support.scrubbed import assert_sound
from tests.support.servers import until
from tests.support.stepped_clock import SteppedServer
from tests.support.stores import Stores
from tests.support.watch import let_pass, server_ms

ALL = 10**5
FAR = 10**8
BEGIN_MS = 1_900_000_000_000
TAGS = st.sampled_from(["a", "a", "b", "c", ""])
MEMBERS = st.integers(0, 2)
COUNTS = st.sampled_from([1, 2, 3, 7, 1000])
PICKS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)
ACK_MS = st.sampled_from([1000, 20_000, FAR, FAR])
LIMITS = st.builds(
    Limits,
    st.sampled_from([None, None, None, 1, 4]),
    st.sampled_from([None, None, 1, 2]),
    st.sampled_from([None, None, None, "1/s burst 2", "4/s burst 1"]),
    st.sampled_from([None, None, None, "1/s burst 1", "1/10s burst 3"]),
)
# The first two members say what they hold when they read, as workers do.
TELLING = 2


# What a group keeps of tags and limits while it needs them.
PASSING_KEYS = ("flying", "tags", "keys", "lanes", "untagged", "buckets")


class CrossedMachine(RuleBasedStateMachine):
    # None: the clock of the machine.
    clock: ClassVar[SteppedServer | None]
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.raised_before = sys.exc_info()[1]
        self.set_clock(BEGIN_MS)
        self.latest_ms = BEGIN_MS
        self.stream = self.client.stream(f"crossed-{secrets.token_hex(6)}")
        self.model = CrossedGroup(BEGIN_MS)
        self.join()

    def set_clock(self, now_ms: int) -> None:
        if self.clock is not None:
            self.clock.stand(now_ms)
            until(lambda: server_ms(self.client) == now_ms)

    def join(self) -> None:
        """Open the group anew for each member; the first read creates it."""
        self.members = [self.open_member(place) for place in range(3)]
        self.members[0].read(0)

    def open_member(self, place: int) -> Group:
        name = f"m{place}-{secrets.token_hex(2)}"
        group = self.stream.group("g", member=name, dead_letters=True)
        if self.model.ordered:
            self.tell(group, place)
        return group

    def tell(self, group: Group, place: int) -> None:
        group.keep_order((lambda: self.model.told(place)) if place < TELLING else None)

    @initialize(tags=st.lists(TAGS, min_size=3, max_size=30), ordered=st.booleans(), limits=LIMITS)
    def start(self, tags: list[str], ordered: bool, limits: Limits) -> None:
        self.write(tags, packed=True)
        if ordered:
            self.keep_order()
        self.limit(limits)
        self.read(0, 3, FAR, None)

    @rule(tags=st.lists(TAGS, min_size=1, max_size=14), packed=st.booleans())
    def write(self, tags: list[str], packed: bool) -> None:
        if packed:
            found = list(self.stream.write_many([(tag, b"v") for tag in tags]))
        else:
            found = [self.stream.write(tag, b"v") for tag in tags]
        self.model.write(found, tags)

    @precondition(lambda self: self.model.last < 300)
    @rule(step=st.integers(1, 3))
    def write_many_more(self, step: int) -> None:
        """Write more than a reader looks ahead at once."""
        self.write(["abc"[n * step % 3] if n % 7 else "" for n in range(520)], packed=True)

    @rule()
    def seal(self) -> None:
        self.stream.seal()

    @rule()
    def compact(self) -> None:
        self.stream.compact()
        self.model.compact()
        self.model.settle()

    @rule(share=st.floats(0, 1))
    def evict(self, share: float) -> None:
        model = self.model
        self.stream.evict(int(model.first + share * (model.last - model.first)))
        self.look_at_the_stream()

    @rule(count=st.integers(1, 20), force=st.booleans())
    def retain(self, count: int, force: bool) -> None:
        known = self.model.messages
        needed = [o for o, one in known.items() if one.open and one.stored and not one.vague]
        self.stream.retain(max_count=count, force=force)
        self.look_at_the_stream()
        assert force or not needed or self.model.first <= min(needed), "it waits for the group"
        self.stream.retain()

    @rule(compacts=st.booleans())
    def keep(self, compacts: bool) -> None:
        self.stream.auto_compact(compacts)
        (kept,) = self.client.keep(self.stream.name)
        assert kept.fault is None
        if kept.compacted:
            self.model.compact()
            self.model.settle()
        self.look_at_the_stream()

    @rule()
    def scrub(self) -> None:
        assert_sound(self.client, self.stream.name)

    def look_at_the_stream(self) -> None:
        self.model.evict(self.stream.info().first)
        self.model.settle()

    @rule(
        member=MEMBERS,
        count=COUNTS,
        ack_ms=ACK_MS,
        expire_ms=st.sampled_from([None, None, None, 500, 30_000]),
    )
    def read(self, member: int, count: int, ack_ms: int, expire_ms: int | None) -> None:
        self.take(member, count, ack_ms, expire_ms)

    def take(
        self, member: int, count: int, ack_ms: int | None, expire_ms: int | None = None
    ) -> int:
        """Read, and check what came; returns how many messages."""
        if self.clock is None:
            ack_ms, expire_ms = ack_ms and FAR, None
        told = self.model.told(member) if member < TELLING else []
        found = self.members[member].read(count, ack_ms=ack_ms, expire_ms=expire_ms)
        assert len(found) <= count
        for message in found:
            assert message.tag == self.model.messages[message.offset].tag
        # What expired was given up before the others of its tag were delivered.
        self.look_at_letters()
        self.model.deliver(offsets(found), member, ack_ms, expire_ms, told)
        return len(found)

    @precondition(lambda self: not self.model.ordered)
    @rule(member=MEMBERS, count=COUNTS)
    def read_without_acknowledging(self, member: int, count: int) -> None:
        self.take(member, count, None)

    @rule(member=MEMBERS, ack_ms=ACK_MS)
    def read_all(self, member: int, ack_ms: int) -> None:
        empty = 0
        while empty < 2:
            empty = 0 if self.take(member, 1000, ack_ms) else empty + 1
        assert not (left := self.model.missing()), f"{left} should come"

    @rule(member=MEMBERS)
    def die(self, member: int) -> None:
        self.members[member] = self.open_member(member)
        for known in self.model.messages.values():
            if known.member == member:
                known.member = -1

    def some(self, among: list[int], picks: list[int]) -> list[int]:
        return sorted({among[pick % len(among)] for pick in picks}) if among else []

    @rule(member=MEMBERS, picks=PICKS, whole=st.booleans())
    def ack(self, member: int, picks: list[int], whole: bool) -> None:
        done = self.model.held() if whole else self.some(self.model.held(), picks)
        assert self.members[member].ack(done) == len(done), "what a member has is acknowledged"
        self.model.end(done, self.model.last + 1)
        assert self.members[member].ack(done) == 0, "twice is once"

    @rule(member=MEMBERS, picks=PICKS, span=st.integers(0, 9))
    def ack_anything(self, member: int, picks: list[int], span: int) -> None:
        starts = self.some(list(range(1, self.model.last + 10)), picks)
        self.acknowledge(member, [(start, start + span) for start in starts])

    @rule(member=MEMBERS)
    def ack_all_there_can_be(self, member: int) -> None:
        self.acknowledge(member, [(1, 2**53 - 1)])
        assert self.members[member].info().pending == 0

    def acknowledge(self, member: int, ranges: list[tuple[int, int]]) -> None:
        stands = self.members[member].info().next
        meant = {
            offset
            for first, last in ranges
            for offset in range(first, min(last, self.model.last) + 1)
        }
        least, most = self.model.bounds(meant, stands)
        assert least <= self.members[member].ack(*ranges) <= most
        self.model.end(meant, stands)

    @rule(picks=PICKS, delay_ms=st.sampled_from([0, 0, 1000, FAR]), way=st.sampled_from("nfr"))
    def return_some(self, picks: list[int], delay_ms: int, way: str) -> None:
        back, group = self.some(self.model.held(), picks), self.members[0]
        if self.clock is None and delay_ms:
            delay_ms = FAR
        if way == "n":
            assert group.nack(back, delay_ms=delay_ms) == len(back)
        elif way == "f":
            assert group.fail(*(Failure(o, "no", delay_ms) for o in back)) == len(back)
        else:
            assert group.release(back) == len(back)
        self.model.wait(back, 0 if way == "r" else delay_ms)

    @rule(picks=PICKS, ack_ms=ACK_MS)
    def extend(self, picks: list[int], ack_ms: int) -> None:
        some = self.some(self.model.held(), picks)
        ack_ms = FAR if self.clock is None else ack_ms
        assert self.members[1].extend(some, ack_ms=ack_ms) == len(some)
        self.model.extend(some, ack_ms)

    @rule(picks=PICKS, fails=st.booleans())
    def bury(self, picks: list[int], fails: bool) -> None:
        stored = [o for o in self.model.held() if self.model.messages[o].stored]
        if not (some := self.some(stored, picks)):
            return
        if fails:
            assert self.members[0].fail(*(Failure(o, "never", None) for o in some)) == len(some)
            self.members[0].bury()
        else:
            assert self.members[0].bury(some, error="never") == len(some)
        self.model.bury(some)

    @rule()
    def give_up(self) -> None:
        self.members[2].bury()
        self.look_at_letters()
        expired = [
            o for o, k in self.model.messages.items() if k.open and k.expire <= self.model.now_ms
        ]
        assert not [o for o in expired if self.model.messages[o].stored], "what expired is given up"

    @rule(picks=PICKS, whole=st.booleans())
    def redrive(self, picks: list[int], whole: bool) -> None:
        letters, model = self.model.letters, self.model
        some = sorted(letters) if whole else self.some(sorted(letters), picks)
        back = [offset for offset in some if offset >= model.first]
        stands = self.members[0].info().next
        done = self.members[0].redrive() if whole else self.members[0].redrive(letters=some)
        assert done.redriven == sum(letters[offset] for offset in back)
        model.redrive(back, stands)

    @rule(picks=PICKS)
    def discard(self, picks: list[int]) -> None:
        some = self.some(sorted(self.model.letters), picks)
        assert self.members[1].discard(some) == sum(self.model.letters[o] for o in some)
        for offset in some:
            del self.model.letters[offset]

    def look_at_letters(self) -> None:
        self.model.found_dead(Counter(letter.origin for letter in self.members[0].dead(ALL)))

    @rule(limits=LIMITS)
    def limit(self, limits: Limits) -> None:
        if self.clock is None:
            limits = Limits(limits.max_in_flight, limits.max_in_flight_per_key)
        assert self.members[0].limit(limits) == self.model.limits
        self.model.limit(limits)

    @rule()
    def lift_limits(self) -> None:
        self.limit(NO_LIMITS)

    @rule()
    def keep_order(self) -> None:
        for place, group in enumerate(self.members):
            self.tell(group, place)
        self.members[0].read(0)
        self.model.keep_order()

    @rule(share=st.floats(0, 1))
    def seek(self, share: float) -> None:
        model = self.model
        position = round(model.first + share * (model.last + 1 - model.first))
        assert self.members[0].seek(position) == position
        model.seek(position)

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        changed = self.members[0].pause() if paused else self.members[0].resume()
        assert changed == (self.model.paused != paused)
        self.model.paused = paused

    @rule()
    def remove(self) -> None:
        assert self.members[0].remove()
        # A group is known by when it began: no two begin in the same millisecond.
        if self.clock is None:
            let_pass(self.client, 1)
        else:
            self.move_clock(self.latest_ms + 1)
        self.model.begin()
        self.join()

    @precondition(lambda self: self.clock is not None)
    @rule(ms=st.sampled_from([1, 300, 600, 1100, 1100, 11_000, 60_000]))
    def pass_time(self, ms: int) -> None:
        self.move_clock(self.model.now_ms + ms)

    @precondition(lambda self: self.clock is not None)
    @rule(ms=st.sampled_from([500, 10_000, 3_600_000]))
    def set_the_clock_back(self, ms: int) -> None:
        self.move_clock(self.model.now_ms - ms)

    def move_clock(self, now_ms: int) -> None:
        self.set_clock(now_ms)
        self.latest_ms = max(self.latest_ms, now_ms)
        self.model.set_clock(now_ms)

    @invariant()
    def the_group_tells_the_truth(self) -> None:
        self.look_at_letters()
        model, info = self.model, self.members[0].info()
        least, most = model.bounds(model.messages, info.next)
        assert least <= info.pending <= most
        assert info.lag == max(model.last - max(info.next, model.first) + 1, 0)
        delivered = [o for o, k in model.messages.items() if k.open and k.state != "new"]
        assert max((o for o in delivered if not model.messages[o].vague), default=0) < info.next
        assert info.missed <= model.most_missed
        assert info.dead == sum(model.letters.values())
        assert (info.ordered, info.paused, info.limits) == (
            model.ordered,
            model.paused,
            model.limits,
        )
        if info.in_flight is not None:
            assert len(model.held()) <= info.in_flight

    def teardown(self) -> None:
        if sys.exc_info()[1] is not self.raised_before:
            # The run was broken off: what it raised is what is to be told.
            return
        self.drain()
        assert_sound(self.client, self.stream.name)
        self.limit(NO_LIMITS)
        for key in PASSING_KEYS:
            pattern = f"hw:s:{{{self.stream.name}}}:g:*:g:{key}"
            assert self.client.store.command("KEYS", pattern) == [[]], f"{key} is left"
        self.stream.delete()

    def drain(self) -> None:
        """Have everything come that is left: with time enough, and members that acknowledge."""
        if self.model.paused:
            self.pause(paused=False)
        self.die(2)
        now_ms = self.latest_ms
        for _ in range(3 * len(self.model.messages) + 20):
            # Past every deadline, and long enough for every bucket.
            now_ms += 2 * FAR
            if self.clock is None:
                self.wake()
            else:
                self.move_clock(now_ms)
            self.read_all(2, FAR)
            self.ack(2, [], whole=True)
            info = self.members[2].info()
            if not info.pending and not info.lag:
                break
        left = [o for o, k in self.model.messages.items() if k.open and not k.vague]
        assert not left, f"{left} never came"
        assert (info.pending, info.lag, info.due) == (0, 0, 0)
        gone = [k for k in self.model.messages.values() if k.missed]
        assert info.missed >= sum(k.expire > self.model.now_ms for k in gone)

    def wake(self) -> None:
        """Have everything that is pending come again now."""
        pending = [o for o, k in self.model.messages.items() if k.open and k.state != "new"]
        self.members[2].nack(pending)
        self.model.wait(pending, 0)


@pytest.fixture(scope="module")
def stepped() -> Iterator[SteppedServer]:
    with SteppedServer() as server:
        yield server


@patient
@pytest.mark.parametrize("clock", ["stepped", "machine"])
def test_a_group_keeps_its_promises_whatever_meets(
    request: pytest.FixtureRequest, dial: Callable[[str], Headwater], stores: Stores, clock: str
) -> None:
    server = request.getfixturevalue("stepped") if clock == "stepped" else None
    client = dial(server.url if server else stores.url("plain"))
    machine = type("Machine", (CrossedMachine,), {"clock": server, "client": client})
    run_state_machine_as_test(machine, settings=MODEL_SETTINGS)
