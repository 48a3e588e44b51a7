"""Data that Roshi filled to its limit is safe under the merge rule: no live element is lost."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from headwater.timeline.records import State, States, kept, merge, shown
from tests.support.roshi import roshi_keeps

MEMBERS = st.binary(min_size=1, max_size=1)
SCORES = st.integers(-9, 9).map(float)
OPERATIONS = st.lists(
    st.tuples(MEMBERS, st.builds(State, SCORES, st.booleans())), min_size=1, max_size=40
)
SIZES = st.integers(1, 4)
BRIM = [
    *((b"%d" % i, State(float(i), False)) for i in range(3)),
    *((b"%d" % i, State(float(i), True)) for i in range(5, 8)),
]


def live(states: States) -> set[bytes]:
    return {member for member, state in states.items() if not state.deleted}


@given(OPERATIONS, SIZES)
@example(BRIM, 3)
def test_all_that_roshi_keeps_of_a_key_is_kept(
    operations: list[tuple[bytes, State]], size: int
) -> None:
    filled = roshi_keeps(operations, size)
    assert kept(filled, 2 * size) == filled
    assert len(shown(filled, size)) == len(live(filled))


@given(OPERATIONS, SIZES, MEMBERS, SCORES)
@example(BRIM, 3, b"x", 9.0)
@example(BRIM, 3, b"x", 0.5)
def test_an_insert_costs_no_live_element_that_it_does_not_outrank(
    operations: list[tuple[bytes, State]], size: int, member: bytes, score: float
) -> None:
    filled = roshi_keeps(operations, size)
    after = kept(merge([filled, {member: State(score, False)}]), 2 * size)
    gone = live(filled) - live(after)
    assert all((filled[one].score, one) < (score, member) for one in gone)
    assert len(gone) <= 1
    # And what goes is beyond what a full key shows, or the newest deletes push it out.
    if gone and len(live(filled)) == size:
        assert {m for m, _ in shown(after, size)} >= live(filled) - gone


@given(OPERATIONS, SIZES, st.data())
@example(BRIM, 3, None)
def test_a_repair_of_copies_that_agree_costs_nothing(
    operations: list[tuple[bytes, State]], size: int, data: st.DataObject | None
) -> None:
    """Copies that lack some of it are brought what they lack."""
    filled = roshi_keeps(operations, size)
    some = {m: s for m, s in filled.items() if data is None or data.draw(st.booleans())}
    assert kept(merge([filled, some, filled]), 2 * size) == filled


@given(st.lists(OPERATIONS, min_size=1, max_size=3), SIZES)
def test_copies_that_differ_in_everything_fit_into_a_keep_for_all_of_them(
    given_to: list[list[tuple[bytes, State]]], size: int
) -> None:
    """So a first walk loses nothing with twice max_size for each cluster."""
    copies = [roshi_keeps(operations, size) for operations in given_to]
    truth = merge(copies)
    assert kept(truth, 2 * size * len(copies)) == truth


@given(OPERATIONS, SIZES, SIZES)
def test_a_key_shows_its_newest_inserts_whatever_else_it_keeps(
    operations: list[tuple[bytes, State]], size: int, more: int
) -> None:
    state = kept(merge({m: s} for m, s in operations), size + more)
    page = shown(state, size)
    assert len(page) == min(size, len(live(state)))
    left = [(state[m].score, m) for m in live(state) - {m for m, _ in page}]
    assert all((score, member) > max(left, default=(-99.0, b"")) for member, score in page)
    assert page == sorted(page, key=lambda row: (row[1], row[0]), reverse=True)


@given(OPERATIONS, OPERATIONS, OPERATIONS, SIZES)
def test_merging_what_is_kept_is_commutative_associative_and_idempotent(
    one: list[tuple[bytes, State]],
    two: list[tuple[bytes, State]],
    three: list[tuple[bytes, State]],
    size: int,
) -> None:
    """Whatever Roshi left: the copies need not obey this rule before they are merged."""

    def join(*states: States) -> States:
        return kept(merge(states), 2 * size)

    a, b, c = (roshi_keeps(operations, size) for operations in (one, two, three))
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c)) == join(a, b, c)
    assert join(a, a) == join(a) == a
    assert join(join(a, b), a, b) == join(a, b)
