"""View of limits: what a group or a queue may deliver, and what a change of them answers."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.kernel.inputs import Limits
from headwater.views.record import View


class LimitsView(View, frozen=True, kw_only=True):
    """The limits of a group or a queue, and those before; a limit that is null is none."""

    stream: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    limits: Limits
    before: Limits
