"""The keys of a queue: all of them are in one slot of a cluster."""

from __future__ import annotations

from headwater.kernel.inputs import check_name

QUEUES = "hw:{queues}"


def queue_key(name: str) -> str:
    """Return the key of a queue; every other key of it begins with this one."""
    return f"hw:q:{{{check_name(name, 'queue')}}}"


def box_key(queue: str, waiter: str) -> str:
    """Return the key of the list on which one blocked consumer waits."""
    return f"{queue}:box:{waiter}"
