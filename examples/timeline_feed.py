"""Timelines out of a log: each rider's latest rides, which can be thrown away and made again.

A group reads the log and writes what it read to a farm, then acknowledges. If it dies in between,
the messages come again, and to write them again changes nothing.
"""

from __future__ import annotations

import json

import headwater
from headwater.timeline import Farm, Operation, apply

FARM = "embedded:one;embedded:two"


def operation(message: headwater.Message) -> Operation:
    """Return what a message does to a timeline: its rider sees a ride until it is cancelled."""
    ride = json.loads(message.value)
    return Operation(ride["rider"], message.offset, ride["ride"], ride["state"] == "cancelled")


def feed(rides: headwater.Stream, farm: Farm) -> int:
    """Bring what is new in the log to the timelines; returns how many messages it saw."""
    group = rides.group("timelines")
    seen = 0
    while messages := group.read(1000, ack_ms=30_000):
        apply(farm, map(operation, messages))
        group.ack(*(message.offset for message in messages))
        seen += len(messages)
    return seen


def main() -> None:
    events = [("ada", "r1", "done"), ("bob", "r2", "done"), ("ada", "r3", "done")]
    events += [("ada", "r1", "cancelled"), ("ada", "r4", "done")]
    with headwater.connect() as hw, Farm.open(FARM, timeout_ms=20_000) as farm:
        rides = hw.stream("rides")
        for rider, ride, state in events:
            rides.write(rider, json.dumps({"rider": rider, "ride": ride, "state": state}))
        print(f"fed {feed(rides, farm)} messages")
        print("ada:", [record.member for record in farm.select(["ada"])["ada"]])
        # As after a crash, or for a farm that was emptied: all of it again.
        rides.group("timelines").seek("first")
        print(f"fed {feed(rides, farm)} messages again")
        print("ada:", [record.member for record in farm.select(["ada"])["ada"]])


if __name__ == "__main__":
    main()
