"""A claim names exactly the rows it is about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.batches import count_ids, id_at, place_of, read_runs, runs_of, spell_runs


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([7], "7"),
        ([7, 8], "7-8"),
        ([1, 2, 3, 5, 9, 10], "1-3,5,9-10"),
        ([2**63 - 2, 2**63 - 1], "9223372036854775806-9223372036854775807"),
    ],
)
def test_neighbours_are_spelled_as_a_run(ids: list[int], text: str) -> None:
    runs = runs_of(ids)
    assert spell_runs(runs) == text
    assert read_runs(text) == runs
    assert count_ids(runs) == len(ids)


@given(st.sets(st.integers(1, 300)).map(sorted))
def test_every_id_is_named_and_no_other(ids: list[int]) -> None:
    runs = read_runs(spell_runs(runs_of(ids)))
    assert [one for first, last in runs for one in range(first, last + 1)] == ids


def test_a_full_batch_of_neighbours_is_short() -> None:
    assert len(spell_runs(runs_of(range(10**15, 10**15 + 10_000)))) < 40


def test_an_id_and_its_place_lead_to_each_other() -> None:
    runs = [(3, 5), (9, 9), (12, 13)]
    ids = [3, 4, 5, 9, 12, 13]
    assert [id_at(runs, place) for place in range(7)] == [*ids, None]
    assert [place_of(runs, one) for one in ids] == list(range(6))
    assert place_of(runs, 6) is None
    assert id_at(runs, -1) is None
