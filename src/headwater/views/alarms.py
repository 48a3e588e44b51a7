"""Views of alarms: what somebody should look at or do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from headwater.views.record import View, copied


class AlarmView(View, frozen=True, kw_only=True):
    """Something that somebody should look at (``look``) or do something about (``act``).

    ``about`` is the kind of the object and its names. ``since_ms`` is when it began, or, with
    ``first_seen``, when it was first seen; None when that is not known.
    """

    level: Literal["act", "look"]
    kind: str
    about: tuple[str, ...]
    text: str
    detail: str
    cure: str
    promise: str
    since_ms: int | None
    first_seen: bool
    amount: int

    @classmethod
    def of(cls, alarm: object) -> AlarmView:
        """Return the view of an alarm."""
        return cls(**copied(cls, alarm))


class AlarmsView(View, frozen=True, kw_only=True):
    """All alarms of a store as of a moment, what needs an act first."""

    store: str
    as_of_ms: int
    alarms: list[AlarmView]

    @classmethod
    def of(cls, store: str, as_of_ms: int, alarms: Iterable[object]) -> AlarmsView:
        """Return the view of the alarms of a store."""
        return cls(store=store, as_of_ms=as_of_ms, alarms=[AlarmView.of(one) for one in alarms])
