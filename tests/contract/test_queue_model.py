"""A queue against a model of it: what is where, who has what, and what comes next.

The server's clock cannot be set, so times are either long past or never: a delay or a deadline of
one millisecond is waited for before the next step, any other is years away.
"""

from __future__ import annotations

import itertools
import secrets
from dataclasses import dataclass, field
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from headwater import Delivery, Headwater
from headwater.queue.types import State
from tests.support.examples import MODEL_SETTINGS, everywhere, patient
from tests.support.scrubbed import assert_sound
from tests.support.watch import let_pass

FAR = 10**9
SIZES = st.sampled_from([1, 2, 5, 12, 70])
SPANS = st.sampled_from([1, FAR, FAR])
COUNTS = st.sampled_from([1, 3, 12, 65, 1000])
PICKS = st.lists(st.integers(0, 10**6), min_size=1, max_size=80)
# What a state that users see is in the model.
STATES: dict[State, tuple[str, ...]] = {
    "ready": ("ready", "again"),
    "delayed": ("delayed", "later"),
    "unacked": ("unacked",),
    "dead": ("dead",),
    "damaged": (),
}


@dataclass
class Model:
    """One message: where it is, since which turn, and how often it was delivered."""

    value: bytes
    priority: int
    state: str
    turn: int
    attempt: int = 0
    mortal: bool = False
    receipts: list[Delivery] = field(default_factory=list)


def headers_of(value: bytes) -> dict[str, bytes]:
    """Return the headers with which a value is pushed: one of eight has some."""
    return {"of": value} if value[0] < 32 else {}


class QueueMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.queue = self.client.queue(f"model-{secrets.token_hex(6)}")
        self.messages: dict[str, Model] = {}
        self.old: list[Delivery] = []
        self.turns = itertools.count()
        self.tries = self.rest_ms = self.acked = self.expired = 0
        self.paused = False

    def teardown(self) -> None:
        assert_sound(self.client, self.queue.name)
        self.queue.delete()

    def of(self, *states: str) -> list[tuple[str, Model]]:
        return [(key, m) for key, m in self.messages.items() if m.state in states]

    def pass_time(self, *spans: int) -> None:
        if 1 in spans:
            let_pass(self.client, 1)

    @initialize(sizes=st.lists(SIZES, min_size=1, max_size=3), tries=st.sampled_from([0, 2]))
    def begin(self, sizes: list[int], tries: int) -> None:
        """Hypothesis leaves out some rules in every run; an idle queue proves little."""
        self.configure(tries, 0)
        for size in sizes:
            self.push(size, 0, 0)

    @rule(tries=st.sampled_from([0, 1, 3]), rest_ms=st.sampled_from([0, 0, FAR]))
    def configure(self, tries: int, rest_ms: int) -> None:
        # Those that lapsed are judged when they are looked at: let that be now.
        self.client.keep_queues(self.queue.name)
        self.queue.configure(max_attempts=tries, backoff="fixed", backoff_ms=rest_ms)
        self.tries, self.rest_ms = tries, rest_ms

    @rule(size=SIZES, delay_ms=st.sampled_from([0, 0, 1, FAR]), priority=st.integers(-1, 1))
    def push(self, size: int, delay_ms: int, priority: int) -> None:
        values = [secrets.token_bytes(8) for _ in range(size)]
        headers = [headers_of(value) for value in values]
        ids = self.queue.push_many(values, delay_ms=delay_ms, priority=priority, headers=headers)
        state = "delayed" if delay_ms == FAR else "ready"
        for key, value in zip(ids, values, strict=True):
            self.messages[key] = Model(value, priority, state, next(self.turns))
        # What is pushed later has a later time, too.
        let_pass(self.client, delay_ms if delay_ms == 1 else 0)

    @rule(size=st.sampled_from([1, 100]))
    def push_for_a_moment(self, size: int) -> None:
        self.queue.push_many([b"gone"] * size, ttl_ms=1)
        self.expired += size
        self.pass_time(1)

    @rule(count=COUNTS, ack_ms=st.sampled_from([None, 1, FAR, FAR]))
    def pop(self, count: int, ack_ms: int | None) -> None:
        taken = self.queue.pop(count, ack_ms=ack_ms)
        if self.paused:
            assert taken == []
            return
        assert len(taken) == min(count, len(self.of("ready", "again")))
        self.check_turns([delivery.id for delivery in taken])
        for delivery in taken:
            found = self.messages[delivery.id]
            assert (delivery.value, delivery.attempt) == (found.value, found.attempt + 1)
            assert delivery.headers == headers_of(found.value)
        for delivery in taken:
            found = self.messages[delivery.id]
            found.attempt += 1
            self.old += found.receipts
            found.receipts = [delivery] if ack_ms else []
            if ack_ms is None:
                del self.messages[delivery.id]
            elif ack_ms == FAR:
                found.state = "unacked"
            else:
                self.fail(found)
                self.old += found.receipts
        self.pass_time(ack_ms or 0)

    def check_turns(self, ids: list[str]) -> None:
        """Check that ready messages come by priority, redelivered ones first, new ones in order."""
        order = sorted(
            (m for _, m in self.of("ready", "again")),
            key=lambda m: (-m.priority, m.state != "again", m.turn if m.state == "ready" else 0),
        )
        assert len(set(ids)) == len(ids)
        for expected, key in zip(order, ids, strict=False):
            found = self.messages[key]
            # In which order messages were redelivered is not in the model.
            assert (found.priority, found.state) == (expected.priority, expected.state)
            assert found is expected or expected.state == "again"

    def fail(self, message: Model, delay_ms: int = 1) -> None:
        if self.tries and message.attempt >= self.tries:
            message.state = "dead"
        else:
            message.state = "later" if FAR in (delay_ms, self.rest_ms) else "again"

    def picked(self, picks: list[int]) -> tuple[list[Delivery], list[Model]]:
        """Choose some deliveries that count, and some that do not any more."""
        held = [m for _, m in self.of("unacked")]
        models = (
            list({id(held[pick % len(held)]): held[pick % len(held)] for pick in picks}.values())
            if held
            else []
        )
        stale = [self.old[pick % len(self.old)] for pick in picks[:3]] if self.old else []
        return [model.receipts[0] for model in models] + stale, models

    @rule(picks=PICKS)
    def ack(self, picks: list[int]) -> None:
        deliveries, models = self.picked(picks)
        assert self.queue.ack(*deliveries) == len(models)
        self.acked += len(models)
        for model in models:
            self.old += model.receipts
        gone = {id(model) for model in models}
        self.messages = {k: m for k, m in self.messages.items() if id(m) not in gone}

    @rule()
    def ack_all(self) -> None:
        held = [m.receipts[0] for _, m in self.of("unacked")]
        assert self.queue.ack(*held) == len(held)
        self.acked += len(held)
        for key, _ in self.of("unacked"):
            self.old += self.messages.pop(key).receipts

    @rule(picks=PICKS, delay_ms=st.sampled_from([0, 1, FAR]))
    def nack(self, picks: list[int], delay_ms: int) -> None:
        deliveries, models = self.picked(picks)
        assert self.queue.nack(*deliveries, delay_ms=delay_ms) == len(models)
        for model in models:
            self.fail(model, delay_ms)
        self.pass_time(delay_ms)

    @rule(picks=PICKS)
    def release(self, picks: list[int]) -> None:
        deliveries, models = self.picked(picks)
        assert self.queue.release(*deliveries) == len(models)
        for model in models:
            model.attempt -= 1
            model.state = "again"

    @rule(picks=PICKS, ack_ms=SPANS)
    def extend(self, picks: list[int], ack_ms: int) -> None:
        deliveries, models = self.picked(picks)
        assert self.queue.extend(*deliveries, ack_ms=ack_ms) == len(models)
        if ack_ms == 1:
            for model in models:
                self.fail(model)
        self.pass_time(ack_ms)

    @rule(count=st.sampled_from([1, 70, 10**6]))
    def redrive(self, count: int) -> None:
        dead = self.of("dead")
        assert self.queue.redrive(count=count) == min(count, len(dead))
        left = {letter.id for letter in self.queue.dead(10**5)}
        for key, model in dead:
            if key not in left:
                model.state, model.attempt = "ready", 0
        # They are as if pushed now, in the order in which they died, which is not told here.
        back = [m for k, m in dead if k not in left]
        assert len(back) == min(count, len(dead))
        let_pass(self.client, 1)
        if back:
            self.take_back(back)

    def take_back(self, back: list[Model]) -> None:
        ids = {id(model) for model in back}
        order = [
            item.id for item in self.queue.peek(10**5) if id(self.messages.get(item.id)) in ids
        ]
        assert len(order) == len(back)
        for key in order:
            self.messages[key].turn = next(self.turns)

    @rule(picks=PICKS)
    def discard(self, picks: list[int]) -> None:
        letters = self.queue.dead(10**5)
        assert {letter.id for letter in letters} == {key for key, _ in self.of("dead")}
        some = list({pick % len(letters): None for pick in picks}) if letters else []
        assert self.queue.discard([letters[place] for place in some]) == len(some)
        for place in some:
            del self.messages[letters[place].id]

    @rule()
    def pause_or_resume(self) -> None:
        assert self.queue.resume() if self.paused else self.queue.pause()
        self.paused = not self.paused

    @rule()
    def keep(self) -> None:
        self.client.keep_queues(self.queue.name)

    @rule()
    def purge(self) -> None:
        self.queue.purge()
        self.messages = {}
        self.expired = self.queue.stats().expired

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        facts = self.queue.stats()
        gone = self.expired - facts.expired
        assert gone >= 0
        assert facts.ready - gone == len(self.of("ready", "again"))
        assert facts.delayed == len(self.of("delayed", "later"))
        assert facts.unacked == len(self.of("unacked"))
        assert facts.dead == len(self.of("dead"))
        assert (facts.acked, facts.damaged) == (self.acked, 0)
        names = {"again": "ready", "later": "delayed"}
        seen = sorted(
            (item.id, item.value, item.state, item.priority, item.attempt)
            for item in self.queue.scan()
            if item.value != b"gone"
        )
        assert seen == sorted(
            (key, m.value, names.get(m.state, m.state), m.priority, m.attempt)
            for key, m in self.messages.items()
        )

    @invariant()
    def a_peek_shows_what_comes_first_in_every_state(self) -> None:
        for state, inner in STATES.items():
            every = self.queue.peek(10**5, state=state)
            for count in (1, 7) if every else ():
                assert self.queue.peek(count, state=state) == every[:count]
            known = [item for item in every if item.value != b"gone"]
            assert {item.state for item in every} <= {state}
            assert sorted(item.id for item in known) == sorted(key for key, _ in self.of(*inner))
            if state == "ready":
                self.check_turns([item.id for item in known])
            else:
                by_time = [
                    (0 if state == "dead" else -item.priority, item.due_ms) for item in every
                ]
                assert by_time == sorted(by_time)


@patient
@everywhere
def test_a_queue_is_a_dict_of_messages_with_a_state_each(client: Headwater) -> None:
    QueueMachine.client = client
    # Every step is compared in full, so a few less of them do.
    steps = settings(MODEL_SETTINGS, stateful_step_count=25)
    run_state_machine_as_test(QueueMachine, settings=steps)
