"""Views of an outbox: what is staged, who streams it, and how far its consumers are."""

from __future__ import annotations

from headwater.outbox.status import Status
from headwater.views.record import mirror

OutboxView = mirror("OutboxView", Status)
