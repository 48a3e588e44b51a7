"""A claim names exactly the rows it is about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.claims import read_ids, spell_ids


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
    assert spell_ids(ids) == text
    assert read_ids(text) == ids


@given(st.sets(st.integers(1, 300)).map(sorted))
def test_every_id_is_named_and_no_other(ids: list[int]) -> None:
    assert read_ids(spell_ids(ids)) == ids


def test_a_full_batch_of_neighbours_is_short() -> None:
    assert len(spell_ids(range(10**15, 10**15 + 10_000))) < 40
