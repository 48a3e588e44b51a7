"""Limits over HTTP: how many messages of a group or a queue are in flight, and how fast they go."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import MAX_IN_FLIGHT, Limits
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.queues import get_queue
from headwater.serve.api.routes import Route
from headwater.views.limits import QueueLimitsView

_Most = Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT)] | None
_Rate = (
    Annotated[str, Meta(max_length=100, description='"100/s", "10/m" or "100/s burst 20"')] | None
)


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """All limits that are to count from now on; what is left out or null is not limited."""

    max_in_flight: _Most = None
    max_in_flight_per_key: _Most = None
    rate: _Rate = None
    rate_per_key: _Rate = None

    def limits(self) -> Limits:
        """Return them as the library takes them."""
        return Limits(self.max_in_flight, self.max_in_flight_per_key, self.rate, self.rate_per_key)


async def set_queue_limits(call: ApiCall) -> QueueLimitsView:
    """Set how many messages of a queue are in flight, and how fast they are delivered.

    All consumers obey from now on. The limits replace those that were there; a queue has none per
    key.
    """
    limits = call.body.limits()
    before = await call.hw.queue(call.name).limit(limits)
    return QueueLimitsView(queue=call.name, limits=limits, before=before)


LIMIT_ROUTES: Final = (
    Route(
        "PUT",
        "/v1/queues/{queue}/limits",
        set_queue_limits,
        Scope.ADMIN,
        body=LimitsBody,
        answer=QueueLimitsView,
        look=get_queue,
    ),
)
