"""A claim names exactly the rows it is about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.claims import count_ids, read_runs, runs_of, spell_runs


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
