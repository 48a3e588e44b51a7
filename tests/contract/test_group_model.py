"""A group against a model of it: what is next, what is pending, what was missed and what died.

The server's clock cannot be set, so deadlines are either long past or never: a retry or an expiry
of one millisecond is waited for before the next step, any other is years away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

from headwater import Headwater, InvalidInput, Message
from headwater.kernel.failures import Failure
from tests.support.examples import FORMS, KINDS, MODEL_SETTINGS, everywhere, meant, patient, span_of
from tests.support.group_model import (
    ALL,
    PLACES,
    RANGES,
    SIZES,
    SPANS,
    TAGS,
    Pending,
    StreamMachine,
)
from tests.support.groups import FAR


class GroupMachine(StreamMachine):
    @initialize(
        sizes=st.lists(SIZES, min_size=1, max_size=4),
        tags=TAGS,
        letters=st.booleans(),
        reads=st.lists(st.tuples(st.integers(0, 40), SPANS, SPANS), max_size=4),
    )
    def begin_with_some(
        self, sizes: list[int], tags: int, letters: bool, reads: list[tuple[int, int, int]]
    ) -> None:
        """Hypothesis leaves out some rules in every run; an idle group proves little."""
        self.set_terms(None, letters)
        for size in sizes:
            self.write(size, tags, headed=letters)
        for count, ack_ms, expire_ms in reads:
            self.read(0, count, ack_ms, expire_ms, int)

    @rule(
        member=st.integers(0, 1),
        count=st.sampled_from([0, 1, 2, 7, 100, ALL, ALL]),
        ack_ms=st.sampled_from([None, 1, FAR, FAR]),
        expire_ms=st.sampled_from([None, None, 1, FAR]),
        kind=KINDS,
    )
    def read(
        self,
        member: int,
        count: int,
        ack_ms: int | None,
        expire_ms: int | None,
        kind: type,
    ) -> None:
        if ack_ms is None:
            expire_ms = None
        if count and any(
            p.due and (p.expired or o not in self.rows) for o, p in self.pending.items()
        ):
            # A read that stops early need not have met all that expired or is gone.
            count = ALL
        terms: Any = {"ack_ms": span_of(ack_ms, kind), "expire_ms": span_of(expire_ms, kind)}
        got = self.members[member].read(count, **terms)
        assert len(got) <= count
        for message in got:
            assert (message.tag, message.value, dict(message.headers)) == self.rows[message.offset]
        self.seen |= {message.offset: message for message in got}
        again = [m for m in got if m.offset < self.next]
        self.check_again(again, count)
        least, most = self.room(count - len(again), ack_ms)
        if count:
            self.drop_gone()
            self.give_up_in_model()
        self.check_new(got[len(again) :], least, most, nothing_yet=not again)
        self.enter(got, ack_ms, expire_ms)
        self.settle_holes()
        self.pass_time(ack_ms, expire_ms)

    def check_again(self, again: list[Message], count: int) -> None:
        """What comes again is due, comes first, and is all there is when there was room."""
        due = {o for o, p in self.pending.items() if p.due and not p.expired and o in self.rows}
        assert {m.offset for m in again} <= due
        assert len({m.offset for m in again}) == len(again) == min(count, len(due))
        assert all(m.attempt == self.pending[m.offset].attempt + 1 for m in again)

    def room(self, left: int, ack_ms: int | None) -> tuple[int, int]:
        """Between how many new messages max_pending left room.

        What expired counts as pending until it is buried, and what was compacted away until the
        reader has noticed.
        """
        if not self.max_pending:
            return left, left
        due = {o for o, p in self.pending.items() if p.due and not p.expired}
        doomed = sum(p.expired for p in self.pending.values())
        free = self.max_pending - len(self.pending) + sum(o < self.first for o in due)
        later = sum(o >= self.first and (ack_ms is None or o not in self.rows) for o in due)
        least = free + (0 if self.letters else doomed) + (later if ack_ms is None else 0)
        return max(0, min(left, least)), max(0, min(left, free + doomed + later))

    def drop_gone(self) -> None:
        """Forget what was due and is gone: evicted is missed, compacted is done."""
        for offset, pending in list(self.pending.items()):
            if pending.due and not pending.expired and offset not in self.rows:
                self.missed += offset < self.first
                del self.pending[offset]

    def check_new(self, new: list[Message], least: int, most: int, *, nothing_yet: bool) -> None:
        """New messages come in order, from where the group stands; holes may make them fewer."""
        if self.next < self.first:
            self.missed += self.first - self.next
            self.next = self.first
        there = [o for o in sorted(self.rows) if o >= self.next]
        assert [m.offset for m in new] == there[: len(new)]
        assert all(m.attempt == 1 for m in new)
        assert len(new) <= most
        dense = there[:least] == list(range(self.next, self.next + min(least, len(there))))
        if dense:
            assert len(new) >= min(least, len(there))
        elif nothing_yet and least:
            assert new
        stands = self.group.info().next
        assert self.next <= stands <= self.last + 1
        assert [o for o in there if o < stands] == [m.offset for m in new]
        self.next = stands

    def enter(self, got: list[Message], ack_ms: int | None, expire_ms: int | None) -> None:
        for message in got:
            known = self.pending.pop(message.offset, None)
            if ack_ms is None:
                continue
            attempt = known.attempt + 1 if known else 1
            expires, expired = expire_ms is not None, expire_ms == 1
            if known and known.expires:
                expires, expired = True, False
            self.pending[message.offset] = Pending(
                attempt, due=ack_ms == 1 or expired, expires=expires, expired=expired
            )

    def settle_holes(self) -> None:
        """Who meets a compacted offset passes over its neighbours too, due or not: settle those."""
        holes = [o for o in self.pending if o >= self.first and o not in self.rows]
        passed_over = len(self.pending) - self.group.info().pending
        if passed_over:
            assert self.group.ack(*holes) == len(holes) - passed_over
            for offset in holes:
                del self.pending[offset]

    @rule(ranges=RANGES, form=FORMS)
    def ack(self, ranges: list[tuple[float, int]], form: str) -> None:
        spans, offsets = self.spans(ranges)
        count = len(offsets & self.pending.keys())
        assert self.group.ack(*meant(spans, form, self.seen)) == count
        for offset in offsets:
            self.pending.pop(offset, None)

    @rule(ranges=RANGES, form=FORMS, delay_ms=st.sampled_from([0, 1, FAR]), kind=KINDS)
    def nack(self, ranges: list[tuple[float, int]], form: str, delay_ms: int, kind: type) -> None:
        def act(spans: list[tuple[int, int]]) -> int:
            delay = span_of(delay_ms, kind)
            return self.group.nack(*meant(spans, form, self.seen), delay_ms=delay)

        self.postpone(ranges, act, delay_ms)

    @rule(ranges=RANGES, form=FORMS, ack_ms=SPANS, kind=KINDS)
    def extend(self, ranges: list[tuple[float, int]], form: str, ack_ms: int, kind: type) -> None:
        def act(spans: list[tuple[int, int]]) -> int:
            terms: Any = {"ack_ms": span_of(ack_ms, kind)}
            return self.group.extend(*meant(spans, form, self.seen), **terms)

        self.postpone(ranges, act, ack_ms)

    def postpone(
        self,
        ranges: list[tuple[float, int]],
        act: Callable[[list[tuple[int, int]]], int],
        delay_ms: int,
    ) -> None:
        spans, offsets = self.spans(ranges)
        moved = offsets & self.pending.keys()
        assert act(spans) == len(moved)
        for offset in moved:
            pending = self.pending[offset]
            pending.due = delay_ms < FAR or pending.expired
        self.pass_time(delay_ms)

    @rule(ranges=RANGES, delay_ms=st.sampled_from([0, FAR, None]))
    def fail(self, ranges: list[tuple[float, int]], delay_ms: int | None) -> None:
        _, offsets = self.spans(ranges)
        failures, failed = [Failure(o, "no", delay_ms) for o in offsets], offsets & {*self.pending}
        if delay_ms is None and not self.letters:
            with pytest.raises(InvalidInput, match="dead_letters=True"):
                self.group.fail(*failures)
            return
        assert self.group.fail(*failures) == len(failed)
        for offset in failed:
            if delay_ms is None:
                self.bury_in_model(offset)
            else:
                self.pending[offset].due = delay_ms < FAR or self.pending[offset].expired

    @rule(ranges=RANGES)
    def release(self, ranges: list[tuple[float, int]]) -> None:
        self.postpone(ranges, lambda spans: self.group.release(*spans), 0)
        for offset in self.spans(ranges)[1] & self.pending.keys():
            self.pending[offset].attempt = max(self.pending[offset].attempt - 1, 0)

    @rule(to=st.one_of(PLACES, st.sampled_from(["first", "last"])))
    def seek(self, to: float | str) -> None:
        if isinstance(to, str):
            stands = self.first if to == "first" else self.last + 1
            assert self.group.seek("first" if to == "first" else "last") == stands
        else:
            stands = self.offset(to)
            if stands > self.last + 1:
                with pytest.raises(InvalidInput):
                    self.group.seek(stands)
                return
            assert self.group.seek(stands) == stands
        self.next, self.pending = stands, {}

    @rule()
    def give_up(self) -> None:
        doomed = sum(p.expired for p in self.pending.values())
        assert self.group.bury() == (doomed if self.letters else 0)
        self.give_up_in_model()

    def give_up_in_model(self) -> None:
        for offset in [o for o, p in self.pending.items() if p.expired]:
            self.bury_in_model(offset)

    def bury_in_model(self, offset: int) -> None:
        del self.pending[offset]
        self.expired += 1
        self.dead[offset] += self.letters

    @rule(count=st.sampled_from([1, 5, ALL]))
    def redrive(self, count: int) -> None:
        there = sum(n for offset, n in self.dead.items() if offset >= self.first)
        returned, gone = self.group.redrive(count)
        assert returned == min(count, there)
        if count == ALL:
            assert gone == sum(self.dead.values()) - there
        left = Counter(letter.origin for letter in self.group.dead(ALL))
        back = self.dead - left
        assert sum(back.values()) == returned
        assert all(offset >= self.first for offset in back)
        for offset in back:
            if offset < self.next:
                self.pending[offset] = Pending(0, due=True, expires=False, expired=False)
        self.dead = left

    @rule(picks=st.lists(PLACES, max_size=8), by=st.sampled_from(["letters", "offsets", "count"]))
    def discard(self, picks: list[float], by: str) -> None:
        letters = self.group.dead(ALL)
        some = {letters[round(p * (len(letters) - 1))] for p in picks if letters and 0 <= p <= 1}
        if by == "letters":
            gone = Counter(letter.origin for letter in some)
            assert self.group.discard(some) == len(some)
        elif by == "offsets":
            wanted = {letter.origin for letter in some}
            gone = Counter({offset: n for offset, n in self.dead.items() if offset in wanted})
            assert self.group.discard(wanted) == sum(gone.values())
        else:
            gone = Counter(letter.origin for letter in letters[: len(picks)])
            assert self.group.discard(count=len(picks)) == sum(gone.values())
        self.dead -= gone
        left = self.group.dead(ALL)
        assert Counter(letter.origin for letter in left) == self.dead
        for letter in left:
            if letter.origin in self.rows:
                assert (letter.tag, letter.value, dict(letter.headers)) == self.rows[letter.origin]

    @rule(
        max_pending=st.sampled_from([None, 0, 5, 50]), letters=st.sampled_from([None, True, False])
    )
    def set_terms(self, max_pending: int | None, letters: bool | None) -> None:
        dead_letters = self.grave if letters else letters
        self.stream.group("g", max_pending=max_pending, dead_letters=dead_letters).read(0)
        if max_pending is not None:
            self.max_pending = max_pending
        if letters is not None:
            self.letters = letters
        if self.next < self.first:
            self.missed += self.first - self.next
            self.next = self.first

    @rule()
    def remove(self) -> None:
        assert (self.group.remove(), self.group.remove()) == (True, False)
        self.begin()
        self.group.read(0)

    @invariant()
    def info_tells_the_truth(self) -> None:
        info = self.group.info()
        assert info.next == self.next
        assert info.pending == len(self.pending)
        assert info.ack_offset == min(self.pending, default=self.next)
        assert info.lag == max(self.last - max(self.next, self.first) + 1, 0)
        assert (info.missed, info.expired) == (self.missed, self.expired)
        assert info.dead == sum(self.dead.values())
        assert info.max_pending == (self.max_pending or None)
        assert info.dead_letters == (self.grave if self.letters else None)
        if len(info.gaps) < 16:
            assert sum(last - first + 1 for first, last in info.gaps) == self.missed


@patient
@everywhere
def test_a_group_is_a_position_and_a_dict_of_pending(client: Headwater) -> None:
    GroupMachine.client = client
    run_state_machine_as_test(GroupMachine, settings=MODEL_SETTINGS)
