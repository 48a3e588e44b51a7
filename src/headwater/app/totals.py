"""What all processes of an application together have done, those that have ended included."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headwater.app.child_messages import PartPlan, PartReport


class PartTotal(NamedTuple):
    """A part in all processes: how many there are, how many of them run it, and what it has done.

    ``lag`` is None when it is not known; ``why`` is what it died of, where it rests.
    """

    name: str
    kind: str
    object: str
    processes: int
    running: int
    done: int
    failed: int
    restarts: int
    lag: int | None
    why: str | None


class Totals:
    """Adds up reports; safe to share between threads."""

    def __init__(self) -> None:
        self.known: Sequence[PartPlan] = ()
        self._lock = threading.Lock()
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._restarts: Counter[str] = Counter()

    def plans(self, parts: Sequence[PartPlan]) -> None:
        """Learn which parts there are."""
        self.known = parts

    def bury(self, reports: Mapping[str, PartReport]) -> None:
        """Keep what a process that has ended had done."""
        with self._lock:
            for name, report in reports.items():
                self._done[name] += report.done
                self._failed[name] += report.failed
                self._restarts[name] += report.restarts

    def restarted(self, names: Iterable[str]) -> None:
        """Count that a process of these parts died."""
        with self._lock:
            self._restarts.update(names)

    def parts(self, processes: Sequence[Mapping[str, PartReport]]) -> list[PartTotal]:
        """Return the totals, with what living processes report."""
        with self._lock:
            return [self._total(plan, processes) for plan in self.known]

    def _total(self, plan: PartPlan, processes: Sequence[Mapping[str, PartReport]]) -> PartTotal:
        name = plan.name
        reports = [reports[name] for reports in processes if name in reports]
        lags = [report.lag for report in reports if report.lag is not None]
        return PartTotal(
            name,
            plan.kind,
            plan.object,
            len(reports),
            sum(report.status == "running" for report in reports),
            self._done[name] + sum(report.done for report in reports),
            self._failed[name] + sum(report.failed for report in reports),
            self._restarts[name] + sum(report.restarts for report in reports),
            max(lags, default=None),
            next((report.why for report in reports if report.why), None),
        )
