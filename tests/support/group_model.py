"""What the model of a group is made of: what is pending, and what is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.support.groups import FAR

ALL = 10**5
SIZES = st.sampled_from([1, 3, 9, 40, 600])
TAGS = st.sampled_from([3, 50, 5000])
SPANS = st.sampled_from([1, FAR])
PLACES = st.floats(-0.1, 1.1)
RANGES = st.lists(st.tuples(PLACES, st.integers(0, 40)), min_size=1, max_size=4)


@dataclass
class Pending:
    """One message that was handed out: how often, whether it is due again, whether it expired."""

    attempt: int
    due: bool
    expires: bool
    expired: bool
