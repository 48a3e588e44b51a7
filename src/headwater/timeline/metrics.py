"""Roshi's metrics of a farm: their names, and how they follow from what a farm reports.

Farms report to the installed instrument (see ``kernel/instrument.py``), each under its own name
without passwords:

    farm.insert  farm.delete           operations; ``messages`` are the tuples given
    farm.select                        an operation; ``messages`` are the elements returned
    farm.score  farm.repair            operations; ``messages`` are the pairs, the keys given
    farm.select_first_answer           parts of a select: until the first cluster answered, while
    farm.select_wait                   clusters were waited for,
    farm.select_overhead               and the rest of it
    farm.repair_check                  parts of a repair: asking the clusters,
    farm.repair_write                  and writing to one of them
    farm.<counter>                     counts, by the names of COUNTERS

Instruments that are RoshiMetrics get them as Roshi's counters and durations. Tally is one of them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, Final

from headwater.kernel.instrument import Event

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
    "select_partial_error",  # n keys for which a cluster returned an error
    "select_send_all_permit_granted",
    "select_send_all_permit_rejected",
    "select_send_all_promotion",
    "select_retrieved",  # n elements that clusters returned
    "select_returned",  # n elements that callers got
    "select_divergent_keys",  # n keys for which clusters hold different elements
    "select_repair_needed",  # n elements on which clusters differ
    "repair_call",
    "repair_request",  # n elements
    "repair_discarded",  # n elements: no room in the queue, over the rate, or by strategy
    "repair_check_partial_failure",  # n clusters that could not be asked
    "repair_check_redundant",  # n elements on which clusters agree by now
    "repair_write_success",  # n elements, for each cluster
    "repair_write_failure",  # n elements, for each cluster
    "repair_trimmed",  # n elements over the size of their key, for each cluster
    "repair_forgotten",  # n elements below the horizon, for each cluster
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

_COUNTED: Final = {f"farm.{name}": name for name in COUNTERS}
_TIMED: Final = {
    "farm.select_first_answer": "select_first_response_duration",
    "farm.select_wait": "select_blocking_duration",
    "farm.select_overhead": "select_overhead_duration",
    "farm.repair_check": "repair_check_duration",
    "farm.repair_write": "repair_write_duration",
}
_WRITES: Final = {
    f"farm.{verb}": (
        f"{verb}_call",
        f"{verb}_record_count",
        f"{verb}_quorum_failure",
        f"{verb}_call_duration",
        f"{verb}_record_duration",
    )
    for verb in ("insert", "delete")
}


class RoshiMetrics(ABC):
    """An instrument that receives the reports of farms as Roshi's counters and durations."""

    @abstractmethod
    def add(self, counter: str, n: int) -> None:
        """Count one of COUNTERS up by n; must not block."""

    @abstractmethod
    def observe(self, duration: str, seconds: float) -> None:
        """Note how long something took that DURATIONS names; must not block."""

    def begin(self, name: str, object: str) -> Any:  # noqa: ARG002
        """Return nothing: everything needed is known at the end of an operation."""
        return None

    def end(self, token: Any, event: Event) -> None:  # noqa: ARG002
        """Count and time an operation of a farm; those of others are ignored."""
        if (write := _WRITES.get(event.name)) is not None:
            calls, records, quorum_failures, call_duration, record_duration = write
            self.add(calls, 1)
            self.add(records, event.messages)
            if event.error == "QuorumFailed":
                self.add(quorum_failures, 1)
            if event.messages:
                self.observe(call_duration, event.seconds)
                self.observe(record_duration, event.seconds / event.messages)
        elif event.name == "farm.select":
            self.add("select_call", 1)
            self.add("select_returned", event.messages)
            self.observe("select_duration", event.seconds)
        elif (duration := _TIMED.get(event.name)) is not None:
            self.observe(duration, event.seconds)

    def count(self, name: str, object: str, n: int = 1) -> None:  # noqa: ARG002
        """Count what a farm counts; the counts of others are ignored."""
        if (counter := _COUNTED.get(name)) is not None:
            self.add(counter, n)


class Tally(RoshiMetrics):
    """Keeps the metrics of all farms in memory: ``counts``, and ``times`` as (how many, seconds).

    with headwater.kernel.instrument.installed(tally := Tally()):
        ...
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.times: dict[str, tuple[int, float]] = dict.fromkeys(DURATIONS, (0, 0.0))

    def add(self, counter: str, n: int) -> None:
        """Count one of COUNTERS up by n."""
        with self._lock:
            self.counts[counter] += n

    def observe(self, duration: str, seconds: float) -> None:
        """Note how long something took that DURATIONS names."""
        with self._lock:
            calls, total = self.times[duration]
            self.times[duration] = (calls + 1, total + seconds)
