"""How much a micro-batch of a streaming query reads."""

from __future__ import annotations

from typing import NamedTuple


class TriggerLimits(NamedTuple):
    """How many offsets a micro-batch has: at most, and at least unless ``delay_ms`` have passed."""

    most: int | None
    least: int | None
    delay_ms: int
