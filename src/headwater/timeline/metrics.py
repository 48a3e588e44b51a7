"""What a farm counts and times, under the names that Roshi gave it; the seam for who shows them.

A farm calls ``count`` and ``time`` of whatever it is given. ``Tally`` keeps figures in memory,
``NoMetrics`` does nothing.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

# Each counts up; those marked n by as many as there are.
COUNTERS: Final = (
    "insert_call",
    "insert_record_count",  # n tuples given
    "insert_quorum_failure",
    "delete_call",
    "delete_record_count",  # n tuples given
    "delete_quorum_failure",
    "write_applied",  # n operations that changed something
    "write_unchanged",  # n operations that did not
    "write_rejected",  # n operations older than all that is kept
    "write_trimmed",  # n elements over the size of their key
    "write_forgotten",  # n elements below the horizon
    "select_call",
    "select_keys",  # n keys asked for
    "select_send_to",  # n clusters asked
    "select_partial_error",  # n keys for which a cluster gave an error
    "select_send_all_permit_granted",
    "select_send_all_permit_rejected",
    "select_send_all_promotion",
    "select_retrieved",  # n elements that clusters gave
    "select_returned",  # n elements that callers got
    "select_repair_needed",  # n elements on which clusters differ
    "repair_call",
    "repair_request",  # n elements
    "repair_discarded",  # n elements, for want of rate or room, or by strategy
    "repair_check_partial_failure",  # n clusters that could not be asked
    "repair_check_redundant",  # n elements on which clusters agree by now
    "repair_write_success",  # n elements, for each cluster
    "repair_write_failure",  # n elements, for each cluster
    "walk_keys",  # n keys compared as a whole
)
DURATIONS: Final = (
    "insert_call_duration",
    "insert_record_duration",
    "delete_call_duration",
    "delete_record_duration",
    "select_first_response_duration",
    "select_blocking_duration",
    "select_overhead_duration",
    "select_duration",
    "repair_check_duration",
    "repair_write_duration",
)


class Metrics(Protocol):
    """Whoever is told; its methods are called often, and must not block."""

    def count(self, name: str, n: int = 1) -> None:
        """Count one of COUNTERS up."""

    def time(self, name: str, seconds: float) -> None:
        """Note how long something took that DURATIONS names."""


class NoMetrics:
    """Tells nobody."""

    def count(self, name: str, n: int = 1) -> None:
        """See Metrics."""

    def time(self, name: str, seconds: float) -> None:
        """See Metrics."""


class Tally:
    """Keeps every figure in memory: ``counts`` by name, and ``times`` as (how many, seconds)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.times: dict[str, tuple[int, float]] = dict.fromkeys(DURATIONS, (0, 0.0))

    def count(self, name: str, n: int = 1) -> None:
        """See Metrics."""
        with self._lock:
            self.counts[name] += n

    def time(self, name: str, seconds: float) -> None:
        """See Metrics."""
        with self._lock:
            calls, total = self.times[name]
            self.times[name] = (calls + 1, total + seconds)
