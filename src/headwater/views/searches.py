"""Views of searches and replays of a stream."""

from __future__ import annotations

from typing import Any

from headwater.log.replaying import Replayed
from headwater.log.types import Searched
from headwater.views.record import View, copied, mirror
from headwater.views.streams import MessageView

ReplayedView = mirror("ReplayedView", Replayed)


class SearchedView(View, frozen=True, kw_only=True):
    """What a search found: it looked at ``searched`` messages, all those in ``low``..``high``.

    The next search begins at ``next``, which is null at the end of the stream, which holds
    ``first``..``last``.
    """

    stream: str
    messages: list[MessageView]
    searched: int
    low: int
    high: int
    next: int | None
    first: int
    last: int
    ms: int

    @classmethod
    def of(cls, found: Searched[Any], stream: str) -> SearchedView:
        """Return the view of what a search found."""
        messages = [MessageView.of(message) for message in found.messages]
        return cls(**copied(cls, found, stream=stream, messages=messages))
