"""Timelines: last-writer-wins sets, newest first, on a farm of clusters that repairs itself.

from headwater.timeline import Farm

with Farm.open("h:1,h:2;h:3,h:4") as farm:
    farm.insert([("ada", 17.0, "ride-1")])
    print(farm.select(["ada"]))
"""

from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.farm import Farm
from headwater.timeline.feeding import Operation, apply, operations
from headwater.timeline.metrics import Tally
from headwater.timeline.records import (
    Compared,
    Cursor,
    InstanceStatus,
    Record,
    Repaired,
    Selected,
    State,
    Written,
)

__all__ = [
    "AsyncFarm",
    "Compared",
    "Cursor",
    "Farm",
    "InstanceStatus",
    "Operation",
    "Record",
    "Repaired",
    "Selected",
    "State",
    "Tally",
    "Written",
    "apply",
    "operations",
]
