"""The merge rule: any order, number and grouping of operations leads to the same state."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headwater.timeline.records import NO_HORIZON, State, States, behind, kept, merge, newest

MEMBERS = st.sampled_from([b"", b"a", b"b", b"\xff", b"a\x00"])
SCORES = st.one_of(
    st.integers(-3, 3).map(float),
    st.sampled_from([-1.7e308, -5e-324, 5e-324, 1.7e308, 2.0**53]),
)
OPERATIONS = st.lists(
    st.tuples(MEMBERS, st.builds(State, SCORES, st.booleans())), min_size=1, max_size=15
)
SIZES = st.integers(1, 6)


def fold(operations: list[tuple[bytes, State]]) -> States:
    return merge({member: state} for member, state in operations)


def test_a_higher_score_wins_and_of_equal_ones_the_delete() -> None:
    assert newest([State(1, False), State(2, False)]) == State(2, False)
    assert newest([State(2, False), State(1, True)]) == State(2, False)
    assert newest([State(1, True), State(1, False)]) == State(1, True)
    assert newest([State(-2, True), None, State(-1, False)]) == State(-1, False)
    assert newest([None]) is None


@given(OPERATIONS, SIZES, st.data())
def test_what_is_kept_step_by_step_is_what_is_kept_in_the_end(
    operations: list[tuple[bytes, State]], size: int, data: st.DataObject
) -> None:
    """In any order, each any number of times, trimmed after each."""
    order = data.draw(st.permutations(operations + operations[:3]))
    state: States = {}
    for member, operation in order:
        state = kept(merge([state, {member: operation}]), size)
    assert state == kept(fold(operations), size)


@given(OPERATIONS, OPERATIONS, SIZES, SCORES)
def test_keeping_commutes_with_merging(
    left: list[tuple[bytes, State]],
    right: list[tuple[bytes, State]],
    size: int,
    horizon: float,
) -> None:
    trimmed = [kept(fold(side), size, horizon) for side in (left, right)]
    assert kept(merge(trimmed), size, horizon) == kept(fold(left + right), size, horizon)


@given(OPERATIONS, SIZES, SCORES, SCORES)
def test_a_horizon_that_rises_forgets_what_one_that_was_always_there_would(
    operations: list[tuple[bytes, State]], size: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    state = kept(fold(operations), size, low)
    assert kept(state, size, high) == kept(fold(operations), size, high)


@given(OPERATIONS, SIZES)
def test_what_fell_out_never_comes_back(operations: list[tuple[bytes, State]], size: int) -> None:
    """So a tombstone that was dropped leaves no way in for an older insert."""
    everything = fold(operations)
    state = kept(everything, size)
    for member, gone in everything.items():
        if member not in state:
            again = {member: State(gone.score, False)}
            assert kept(merge([state, again]), size) == state


def test_trimming_both_kinds_apart_would_depend_on_the_order() -> None:
    """Why deletes count: the delete of x is pushed out, and an older insert of it stays out."""
    operations = [(b"x", State(4, False)), (b"x", State(5, True)), (b"z", State(7, True))]
    for order in itertools.permutations(operations):
        state: States = {}
        for member, operation in order:
            state = kept(merge([state, {member: operation}]), 1)
        assert state == {b"z": State(7, True)}


def test_a_replica_is_told_only_what_it_does_not_know() -> None:
    truth = {b"a": State(2, True), b"b": State(1, False)}
    assert behind({b"a": State(2, False), b"b": State(1, False)}, truth) == {b"a": State(2, True)}
    assert behind(truth, truth) == {}
    assert kept(truth, 9, NO_HORIZON) == truth
