"""Views of what a scrub saw, and of what a repair did."""

from __future__ import annotations

from headwater.store.scrubbing import Defect, ScrubReport
from headwater.views.record import View, copied
from headwater.whole_store.scrubbing import RepairReport


class DefectView(View, frozen=True, kw_only=True):
    """What is wrong with an object; ``repairable`` says whether ``headwater repair`` cures it."""

    kind: str
    name: str
    place: str
    expected: str
    found: str
    cure: str
    repairable: bool

    @classmethod
    def of(cls, defect: Defect) -> DefectView:
        """Return the view of a defect."""
        return cls(**copied(cls, defect, repairable=defect.repair is not None))


class ScrubView(View, frozen=True, kw_only=True):
    """What a scrub saw; ``more`` defects were only counted."""

    store: str
    objects: int
    bytes: int
    complete: bool
    unsettled: list[str]
    more: int
    defects: list[DefectView]

    @classmethod
    def of(cls, report: ScrubReport, store: str) -> ScrubView:
        """Return the view of a scrub's report."""
        defects = [DefectView.of(defect) for defect in report.defects]
        unsettled = list(report.unsettled)
        return cls(**copied(cls, report, store=store, defects=defects, unsettled=unsettled))


class RepairView(View, frozen=True, kw_only=True):
    """What a repair did, or would do in a dry run, which leaves everything."""

    store: str
    dry_run: bool
    complete: bool
    repaired: list[DefectView]
    left: list[DefectView]

    @classmethod
    def of(cls, report: RepairReport, store: str, *, dry_run: bool) -> RepairView:
        """Return the view of a repair's report."""
        return cls(
            store=store,
            dry_run=dry_run,
            complete=report.complete,
            repaired=[DefectView.of(defect) for defect in report.repaired],
            left=[DefectView.of(defect) for defect in report.left],
        )
