"""The table of routes: everything that may be asked of the API."""

from __future__ import annotations

from typing import Final

from headwater.serve.api.groups import GROUP_ROUTES, TOPIC_GROUP_ROUTES
from headwater.serve.api.jobs import REPLAY_ROUTES, SCRUB_ROUTES
from headwater.serve.api.kinds import CHANNEL_ROUTES, ICK_ROUTES, TIMED_JOB_ROUTES
from headwater.serve.api.letters import LETTER_ROUTES
from headwater.serve.api.outboxes import OUTBOX_ROUTES
from headwater.serve.api.queues import QUEUE_ROUTES
from headwater.serve.api.stores import QUERY_ROUTES, STORE_ROUTES, TRACE_ROUTES
from headwater.serve.api.streams import READER_ROUTES, STREAM_ROUTES, TOPIC_ROUTES
from headwater.serve.api.timelines import TIMELINE_ROUTES

ROUTES: Final = (
    *STORE_ROUTES,
    *SCRUB_ROUTES,
    *STREAM_ROUTES,
    *READER_ROUTES,
    *REPLAY_ROUTES,
    *GROUP_ROUTES,
    *TOPIC_ROUTES,
    *TOPIC_GROUP_ROUTES,
    *QUEUE_ROUTES,
    *ICK_ROUTES,
    *CHANNEL_ROUTES,
    *LETTER_ROUTES,
    *TIMED_JOB_ROUTES,
    *TIMELINE_ROUTES,
    *OUTBOX_ROUTES,
    *QUERY_ROUTES,
    *TRACE_ROUTES,
)
