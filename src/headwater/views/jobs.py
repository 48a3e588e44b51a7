"""Views of what jobs on Spark did; importing them needs Spark, as the jobs do."""

from __future__ import annotations

from headwater.spark.jobs.archive import Archived
from headwater.spark.jobs.backfill import Backfilled
from headwater.spark.jobs.compact import Compacted
from headwater.spark.jobs.progress import Summary
from headwater.spark.jobs.reconcile import Reconciled
from headwater.spark.jobs.restore import Restored
from headwater.spark.jobs.totals import Totaled
from headwater.spark.jobs.walk import SparkWalked
from headwater.views.record import View, mirror

TotaledView = mirror("TotaledView", Totaled)
ReconciledView = mirror("ReconciledView", Reconciled)
SparkCompactedView = mirror("SparkCompactedView", Compacted)
BackfilledView = mirror("BackfilledView", Backfilled)
ArchivedView = mirror("ArchivedView", Archived)
RestoredView = mirror("RestoredView", Restored)
SparkWalkedView = mirror("SparkWalkedView", SparkWalked)

_VIEWS = {
    Totaled: TotaledView,
    Reconciled: ReconciledView,
    Compacted: SparkCompactedView,
    Backfilled: BackfilledView,
    Archived: ArchivedView,
    Restored: RestoredView,
    SparkWalked: SparkWalkedView,
}


def job_view(summary: Summary) -> View:
    """Return the view of what a job did, whichever job it was."""
    return _VIEWS[type(summary)].of(summary)
