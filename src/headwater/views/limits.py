"""Views of limits: what a group or a queue may deliver, and what a change of them answers."""

from __future__ import annotations

from headwater.kernel.inputs import Limits
from headwater.views.record import View


class GroupLimitsView(View, frozen=True, kw_only=True):
    """The limits of a group, and those before; a limit that is null is none."""

    stream: str
    group: str
    limits: Limits
    before: Limits


class TopicLimitsView(View, frozen=True, kw_only=True):
    """The limits of a group over a topic, which are per key, and those before."""

    topic: str
    group: str
    limits: Limits
    before: Limits


class QueueLimitsView(View, frozen=True, kw_only=True):
    """The limits of a queue, and those before; a limit that is null is none."""

    queue: str
    limits: Limits
    before: Limits
