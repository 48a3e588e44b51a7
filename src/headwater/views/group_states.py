"""Views of whether groups deliver messages."""

from __future__ import annotations

from typing import Literal

from headwater.views.record import View


class GroupStateView(View, frozen=True, kw_only=True):
    """Whether a group delivers messages, and whether it was otherwise until now."""

    stream: str
    group: str
    state: Literal["paused", "runs"]
    changed: bool


class TopicGroupStateView(View, frozen=True, kw_only=True):
    """Whether a topic's group delivers messages, and whether it was otherwise until now."""

    topic: str
    group: str
    state: Literal["paused", "runs"]
    changed: bool
