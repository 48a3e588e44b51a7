"""Limits as they are given, spelled and stored; and the rules by which tests judge them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import InvalidInput
from headwater.kernel.inputs import NO_LIMITS, Limits, Rate
from tests.support.limit_rules import Deliveries, faster_than, more_at_once

COUNTS = st.none() | st.integers(1, 10**6)
RATES = st.none() | st.builds(
    lambda count, span, burst: f"{count}/{span}" + (f" burst {burst}" if burst else ""),
    st.integers(1, 1000),
    st.sampled_from(["s", "500ms", "m", "2h", "d"]),
    st.none() | st.integers(1, 10**6),
)


@given(COUNTS, COUNTS, RATES, RATES)
def test_limits_are_read_as_they_were_stored(
    most: int | None, of_key: int | None, rate: str | None, rate_of_key: str | None
) -> None:
    limits = Limits(most, of_key, rate, rate_of_key)
    assert Limits.of_stored(limits.stored().encode()) == limits
    assert Limits(most, of_key, limits.rate, limits.rate_per_key) == limits
    assert bool(limits) == (limits != NO_LIMITS) == bool(limits.stored())


@pytest.mark.parametrize(
    ("text", "spelled"),
    [("100/s", "100/s burst 10"), (" 5 / s ", "5/s burst 2"), ("10/m", "10/m burst 1"),
     ("1/500ms", "1/500ms burst 2"), ("60/60s", "60/m burst 2"), ("7/90s burst 3", "7/90s burst 3"),
     ("1000000/s", "1000000/s burst 100000")],
)  # fmt: skip
def test_a_rate_is_spelled_out_with_its_burst(text: str, spelled: str) -> None:
    assert str(Rate.of(text, "rate")) == spelled


@pytest.mark.parametrize("text", ["", "5", "5/", "/s", "0/s", "-1/s", "5/w", "5/s burst", "5.5/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Rate.of(text, "rate")


def test_the_law_finds_handlers_beyond_a_limit() -> None:
    notes = ["begin a 1 p 0.1", "begin a 2 q 0.2", "begin b 3 p 0.3", "end a 1 p 0.4"]
    assert more_at_once(notes, 3, 2) == []
    assert len(more_at_once(notes, 2, None)) == 1
    assert len(more_at_once(notes, None, 1)) == 1
    assert more_at_once([*notes[:2], "died q", "begin a 2 p 0.5", "begin a 9 q 0.6"], 2, 2) == []


def test_the_law_finds_deliveries_beyond_a_rate() -> None:
    even = [Deliveries(n / 10, n / 10, 1) for n in range(20)]
    assert faster_than(even, 10, 1) == []
    assert faster_than([*even, Deliveries(1.0, 1.0, 1)], 10, 1) != []
    assert faster_than([Deliveries(0.0, 0.0, 3)], 10, 2) != []
    assert faster_than([Deliveries(0.0, 0.5, 3)], 10, 2) == [], "it may have been at any moment"
