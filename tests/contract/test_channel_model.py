"""A channel against a model of it, for three consumers of which any may fall silent.

The server's clock cannot be set, so a lease is either over or years long, and so is a wait: a
consumer whose leases are over has asked for one millisecond, and that is waited for. Which of the
waiting members come is up to the channel within its rules, so the model checks what comes, and
knows exactly what is dirty, reserved by whom, and in which generation.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import ClassVar
from zlib import crc32

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headwater import Batch, Headwater, IckChannel, LeaseLost
from tests.support.examples import MODEL_SETTINGS, everywhere, patient
from tests.support.scrubbed import assert_sound
from tests.support.watch import let_pass, server_ms

FAR = 10**9
NAMES = st.sampled_from([f"m{i}" for i in range(20)])
SCORES = st.integers(-5, 5)
COUNTS = st.sampled_from([1, 2, 5, 30])
CONSUMERS = st.sampled_from("abc")
ENDS = st.sampled_from(["commit", "release"])


class Shard:
    """What one shard holds: dirty members, those for later, and what its holder has reserved."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        self.later: dict[str, float] = {}
        self.held: dict[str, tuple[float, int]] = {}
        self.holder: str | None = None
        self.over = False
        self.token = 0

    def add(self, member: str, score: float, later: bool) -> None:
        before = self.ready.get(member, self.later.get(member, score))
        score = min(score, before)
        if later and member not in self.ready:
            self.later[member] = score
        else:
            self.later.pop(member, None)
            self.ready[member] = score

    def give_back(self) -> None:
        for member, (score, _) in self.held.items():
            self.add(member, score, later=False)
        self.held, self.holder, self.over = {}, None, False
        self.token += 1


class ChannelMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"model-{secrets.token_hex(6)}"
        self.consumers: dict[str, IckChannel] = {
            name: self.client.ick_channel(self.name, shards=2, consumer=name, ack_ms=FAR)
            for name in "abc"
        }
        self.any = self.consumers["a"]
        self.shards = [Shard(), Shard()]
        self.old: list[Shard] = []
        self.batches: list[tuple[str, Batch, Shard]] = []

    def teardown(self) -> None:
        self.nothing_is_lost_or_invented()
        assert_sound(self.client, self.any.name)
        self.any.delete()

    def place(self, member: str) -> Shard:
        return self.shards[crc32(member.encode()) % len(self.shards)]

    @initialize(scores=st.dictionaries(NAMES, SCORES, min_size=5))
    def begin_with_some(self, scores: dict[str, float]) -> None:
        self.add("a", scores, later=False)

    @rule(who=CONSUMERS, scores=st.dictionaries(NAMES, SCORES, max_size=12), later=st.booleans())
    def add(self, who: str, scores: dict[str, float], later: bool) -> None:
        new = lowered = 0
        for member, score in scores.items():
            shard = self.place(member)
            waits = shard.ready.get(member, shard.later.get(member))
            new += waits is None
            lowered += waits is not None and score < waits
            shard.add(member, score, later)
        when = server_ms(self.client) + FAR if later else None
        assert self.consumers[who].add(scores, not_before=when) == (new, lowered)

    @rule(who=CONSUMERS, n=COUNTS)
    def reserve(self, who: str, n: int) -> None:
        self.finish(who)
        batch = self.consumers[who].reserve(n)
        if not batch:
            blocked = bool(self.old)
            free = [s for s in self.shards if s.over or s.holder in (None, who)]
            assert blocked or not any(s.ready or s.held for s in free)
            return
        assert not self.old, "nothing is reserved while a lease of the old layout is in force"
        shard = self.shards[batch.shard]
        assert shard.over or shard.holder in (None, who)
        assert (batch.token == shard.token) == (shard.holder == who)
        assert batch.token >= shard.token
        self.check_batch(shard, batch, n)
        shard.holder, shard.over, shard.token = who, False, batch.token
        self.batches.append((who, batch, shard))

    def check_batch(self, shard: Shard, batch: Batch, n: int) -> None:
        """What was reserved comes first; then the dirty, each under its lower score."""
        before = dict(shard.held)
        made = {generation for _, generation in before.values()}
        for row in batch:
            member = str(row.member)
            known = shard.held.get(member)
            if known is not None and row.generation == known[1]:
                assert row.score == known[0]
            else:
                assert row.generation not in made, "another generation than any before"
                score = shard.ready.pop(member)
                assert row.score == min(score, known[0] if known else score)
                shard.held[member] = (row.score, row.generation)
        assert len(batch) == min(n, len(shard.held))
        assert len(shard.held) >= min(n, len(before) + len(shard.ready) * (not shard.ready))
        if len(before) < n:
            assert len(shard.held) == n or not shard.ready, "as many as there are"
        assert batch.members == [
            m for m, _ in sorted(shard.held.items(), key=lambda r: (r[1][0], r[0]))[:n]
        ]

    def stale(self, batch: Batch, shard: Shard) -> bool:
        return batch.token != shard.token or shard not in (*self.shards, *self.old)

    @precondition(lambda self: self.batches)
    @rule(
        choice=st.floats(0, 1), share=st.floats(0, 1), what=st.sampled_from(["commit", "release"])
    )
    def end(self, choice: float, share: float, what: str) -> None:
        who, batch, shard = self.batches[round(choice * (len(self.batches) - 1))]
        chosen = [str(m) for m in batch.members[: 1 + round(share * len(batch))]]
        call = getattr(self.consumers[who], what)
        if self.stale(batch, shard):
            # It may have ended with nothing left, which is no loss.
            with contextlib.suppress(LeaseLost):
                assert call(batch, *chosen) == 0
            return
        generations = {str(row.member): row.generation for row in batch}
        gone = [m for m in chosen if m in shard.held and shard.held[m][1] == generations[m]]
        assert call(batch, *chosen) == len(gone)
        for member in gone:
            score, _ = shard.held.pop(member)
            if what == "release":
                shard.add(member, score, later=False)
        if not shard.held:
            shard.holder, shard.over = None, False
        else:
            shard.over = False

    @precondition(lambda self: any(s.holder and not s.over for s in (*self.shards, *self.old)))
    @rule(choice=st.floats(0, 1))
    def fall_silent(self, choice: float) -> None:
        """A holder asks for one millisecond more, and is not heard of again."""
        live = [
            (who, batch, shard)
            for who, batch, shard in self.batches
            if not self.stale(batch, shard) and shard.holder
        ]
        who, batch, shard = live[round(choice * (len(live) - 1))]
        assert self.consumers[who].renew(batch, ack_ms=1) > 0
        let_pass(self.client, 1)
        shard.over = True

    @rule(who=CONSUMERS, shards=st.integers(1, 4))
    def reshard(self, who: str, shards: int) -> None:
        layout = self.consumers[who].reshard(shards)
        self.settle()
        if self.old:
            assert layout == (len(self.shards), False, sum(bool(s.holder) for s in self.old))
            return
        if shards == len(self.shards):
            assert layout == (shards, True, 0)
            return
        self.old, self.shards = self.shards, [Shard() for _ in range(shards)]
        self.settle()
        assert layout.shards == shards
        assert layout.settled == (not self.old)

    def settle(self) -> None:
        """Move what is left behind, as whoever comes by does, once no lease is in force."""
        for shard in self.old:
            if shard.over:
                shard.give_back()
        if any(shard.holder for shard in self.old):
            return
        for shard in self.old:
            for members, later in ((shard.ready, False), (shard.later, True)):
                for member, score in members.items():
                    self.place(member).add(member, score, later)
        self.old = []

    @rule(who=CONSUMERS)
    def finish(self, who: str) -> None:
        """Bring a change to its end; a reserve alone would move a page, which no model foresees."""
        if self.old:
            self.consumers[who].reshard(len(self.shards))
            self.settle()

    @rule()
    def nothing_is_lost_or_invented(self) -> None:
        every = [*self.shards, *self.old]
        wanted = [
            *(("ready", m, s) for shard in every for m, s in shard.ready.items()),
            *(("later", m, s) for shard in every for m, s in shard.later.items()),
            *(("reserved", m, s) for shard in every for m, (s, _) in shard.held.items()),
        ]
        assert sorted((r.place, r.member, r.score) for r in self.any.scan()) == sorted(wanted)
        holders = sorted(shard.holder for shard in every if shard.holder)
        assert sorted(lease.consumer for lease in self.any.consumers()) == holders


@patient
@everywhere
def test_a_channel_loses_nothing_and_reserves_nothing_twice(client: Headwater) -> None:
    ChannelMachine.client = client
    run_state_machine_as_test(ChannelMachine, settings=MODEL_SETTINGS)


@pytest.mark.parametrize("client", ["plain-sync"], indirect=True)
def test_the_model_reaches_what_it_is_there_for(client: Headwater) -> None:
    """A run by hand through a takeover, a re-dirtied member and a change of shards."""
    ChannelMachine.client = client
    machine = ChannelMachine()
    machine.add("a", {f"m{i}": i for i in range(20)}, later=False)
    machine.reserve("a", 5)
    machine.add("b", {str(machine.batches[0][1].members[0]): -5}, later=False)
    machine.fall_silent(0)
    machine.reshard("b", 3)
    for _ in range(8):
        machine.reserve("b", 5)
        machine.nothing_is_lost_or_invented()
    machine.end(0, 1, "commit")
    for _ in range(len(machine.batches)):
        machine.end(1, 1, "commit")
        machine.batches.pop()
    machine.teardown()
