"""The ways in which a caller may say the same thing: deadlines, and which messages are meant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

# A number of milliseconds or a span of time.
KINDS = st.sampled_from([int, dt.timedelta])
FORMS = st.sampled_from(["pairs", "ranges", "offsets", "messages"])


def span_of(ms: int | None, kind: type) -> Any:
    """Return a span of time as a number of milliseconds or as a timedelta."""
    return dt.timedelta(milliseconds=ms) if ms is not None and kind is dt.timedelta else ms


def meant(spans: Iterable[tuple[int, int]], form: str, messages: Mapping[int, Any]) -> list[Any]:
    """Return ranges of offsets in a form that ack takes; messages where they are known."""
    shapes: dict[str, Callable[[int, int], Any]] = {
        "pairs": lambda first, last: (first, last),
        "ranges": lambda first, last: range(first, last + 1),
        "offsets": lambda first, last: list(range(first, last + 1)),
        "messages": lambda first, last: (messages.get(at, at) for at in range(first, last + 1)),
    }
    return [shapes[form](*span) for span in spans]
