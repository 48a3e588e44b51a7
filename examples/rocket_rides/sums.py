"""What Spark's jobs must know of Rocket Rides: its records, its table, and its consumers' sums.

It needs PySpark.
"""

from __future__ import annotations

from headwater.spark.jobs.folding import Shape
from headwater.spark.jobs.ledger import Keeping
from headwater.spark.jobs.reconcile import Canon

SHAPE = Shape("distance_mm", {"ride": "id", "pilot": "pilot"})
CANON = Canon("rocket_rides", key="id", per="pilot", value="distance_mm")
KEEPING = Keeping(
    "rocket_pilot_totals", "rocket_totals", per="pilot", records="rides", total="distance_mm"
)
