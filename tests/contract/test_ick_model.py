"""An Ick against a model of it: two dictionaries, as redis-ick describes them."""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headwater import Headwater
from tests.support.examples import MODEL_SETTINGS, everywhere, patient

NAMES = st.sampled_from([f"m{i}" for i in range(25)])
SCORES = st.one_of(st.integers(-3, 3), st.floats(allow_nan=False), st.sampled_from([0.1, 2**53]))
COUNTS = st.sampled_from([0, 1, 2, 5, 30])

Set = dict[str, float]


def order(members: Set) -> list[tuple[str, float]]:
    return sorted(members.items(), key=lambda row: (row[1], row[0].encode()))


def fold(into: Set, member: str, score: float) -> None:
    into[member] = min(score, into.get(member, score))


class IckMachine(RuleBasedStateMachine):
    client: ClassVar[Headwater]

    def __init__(self) -> None:
        super().__init__()
        self.ick = self.client.ick(f"model-{secrets.token_hex(6)}")
        self.there = False
        self.pset: Set = {}
        self.cset: Set = {}

    def teardown(self) -> None:
        self.ick.delete()

    @rule(scores=st.dictionaries(NAMES, SCORES, max_size=12))
    def add(self, scores: Set) -> None:
        new = sum(member not in self.pset for member in scores)
        lowered = sum(score < self.pset.get(member, score) for member, score in scores.items())
        for member, score in scores.items():
            fold(self.pset, member, float(score))
        assert self.ick.add(scores) == (new, lowered)
        self.there = True

    def take(self, n: int, members: list[str], backwash: bool) -> tuple[int, list[Any]]:
        committed = sum(self.cset.pop(member, None) is not None for member in members)
        if backwash:
            for member, score in self.cset.items():
                fold(self.pset, member, score)
            self.cset = {}
        while len(self.cset) < n and self.pset:
            member, score = order(self.pset)[0]
            del self.pset[member]
            fold(self.cset, member, score)
        self.there = True
        return committed, order(self.cset)[:n]

    @rule(n=COUNTS, backwash=st.booleans())
    def reserve(self, n: int, backwash: bool) -> None:
        assert self.ick.reserve(n, backwash) == self.take(n, [], backwash)[1]

    @rule(members=st.lists(NAMES, max_size=8))
    def commit(self, members: list[str]) -> None:
        assert self.ick.commit(*members) == self.take(0, members, False)[0]

    @rule(n=COUNTS, members=st.lists(NAMES, max_size=8), backwash=st.booleans())
    def exchange(self, n: int, members: list[str], backwash: bool) -> None:
        wanted = self.take(n, members, backwash)[1]
        assert self.ick.exchange(n, *members, backwash=backwash) == wanted

    @rule()
    def delete(self) -> None:
        keys = self.there + bool(self.pset) + bool(self.cset)
        assert self.ick.delete() == keys
        self.there, self.pset, self.cset = False, {}, {}

    @invariant()
    def stats_and_scan_tell_the_truth(self) -> None:
        facts = self.ick.stats()
        if not self.there:
            assert facts is None
            return
        assert facts is not None
        shown: dict[str, object] = {**facts}
        sets = {"pset": self.pset, "cset": self.cset, "total": {**self.pset, **self.cset}}
        for name, members in sets.items():
            every = [*self.pset.values(), *self.cset.values()]
            scores = every if name == "total" else list(members.values())
            assert shown[f"{name}_size"] == len(scores)
            assert shown.get(f"{name}_min") == min(scores, default=None)
            assert shown.get(f"{name}_max") == max(scores, default=None)
        found = sorted((row.place, row.member, row.score) for row in self.ick.scan())
        assert found == sorted(
            [("pset", m, s) for m, s in self.pset.items()]
            + [("cset", m, s) for m, s in self.cset.items()]
        )


@patient
@everywhere
def test_an_ick_is_two_sets(client: Headwater) -> None:
    IckMachine.client = client
    run_state_machine_as_test(IckMachine, settings=MODEL_SETTINGS)
