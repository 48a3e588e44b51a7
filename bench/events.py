"""The events of the benchmarks: JSON of about 130 bytes, as a ride service would write them."""

from __future__ import annotations

import json
import random

_STATES = ("requested", "accepted", "started", "finished", "cancelled")


def events(count: int, seed: int = 11) -> list[tuple[str, bytes]]:
    """Make (tag, value) pairs: 20,000 rides by 3,000 pilots, numbers that do not repeat."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        ride = rng.randrange(20_000)
        event = {
            "id": seed * 1_000_000 + number,
            "ride": ride,
            "pilot": f"pilot-{rng.randrange(3_000):04d}",
            "distance_mm": rng.randrange(100_000, 90_000_000),
            "at": 1_790_000_000_000 + number * 7 + rng.randrange(7),
            "state": rng.choice(_STATES),
        }
        made.append((f"ride-{ride}", json.dumps(event).encode()))
    return made
