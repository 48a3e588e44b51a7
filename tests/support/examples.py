"""How long the models are tried: a little in every test run, much more when asked.

``HEADWATER_EXAMPLES=1000 pytest tests/contract -k model`` tries a thousand runs of each model.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("HEADWATER_EXAMPLES", "8"))

# Every client on every kind of store.
everywhere = pytest.mark.parametrize(
    "client",
    [
        pytest.param(f"{store}-{manner}", marks=[pytest.mark.cluster] if store == "cluster" else [])
        for store in ("embedded", "plain", "redis", "cluster")
        for manner in ("sync", "async")
    ],
    indirect=True,
)
patient = pytest.mark.timeout(300 + EXAMPLES)
MODEL_SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


# ── The ways in which a caller may say the same thing: deadlines, and which messages are meant ───

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
