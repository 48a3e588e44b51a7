"""The pages of the console: where each is, and under which word of the navigation."""

from __future__ import annotations

from typing import Final

from headwater.serve.console.calls import ConsoleFeed, ConsolePage, Context, PageCall
from headwater.serve.console.letters import show_dead
from headwater.serve.console.pages.overview import (
    renew_channel,
    renew_consumer,
    renew_group,
    renew_outbox,
    renew_queue,
    renew_store,
    show_overview,
)
from headwater.serve.console.pages.queues import (
    show_channel,
    show_ick,
    show_lists,
    show_queue,
    show_queues,
)
from headwater.serve.console.pages.readers import show_consumer, show_consumers, show_group
from headwater.serve.console.pages.search import show_search
from headwater.serve.console.pages.store import (
    show_audit,
    show_outbox,
    show_processes,
    show_spark,
    show_store,
    show_timed,
    show_timed_job,
)
from headwater.serve.console.pages.stream import (
    follow_stream,
    show_message,
    show_row,
    show_stream,
    show_stream_groups,
    show_stream_replay,
    show_stream_settings,
    show_stream_storage,
    show_stream_tail,
    show_stream_write,
    show_streams,
    show_topic,
    show_topics,
)
from headwater.serve.console.pages.timelines import show_timelines
from headwater.serve.http.messages import Refused

# What scripts of the pages ask for, as JSON.
SOURCES: Final = (
    ConsolePage("/charts", renew_store, "", ""),
    ConsolePage("/streams/{stream}/groups/{group}/charts", renew_group, "", ""),
    ConsolePage("/queues/{queue}/charts", renew_queue, "", ""),
    ConsolePage("/lists/{channel}/charts", renew_channel, "", ""),
    ConsolePage("/outbox/charts", renew_outbox, "", ""),
    ConsolePage("/consumers/{consumer}/charts", renew_consumer, "", ""),
)
# A word, a path, and the key that goes there after g.
NAVIGATION: Final = (
    ("Overview", "", "o"),
    ("Streams", "/streams", "s"),
    ("Topics", "/topics", "k"),
    ("Queues", "/queues", "q"),
    ("Dirty lists", "/lists", "l"),
    ("Timelines", "/timelines", "m"),
    ("Outbox", "/outbox", "b"),
    ("Consumers", "/consumers", "c"),
    ("Spark", "/spark", "p"),
    ("Processes", "/processes", "w"),
    ("Timed jobs", "/timed", "t"),
    ("Dead letters", "/dead", "d"),
    ("Audit", "/audit", "a"),
    ("Store", "/store", "h"),
)
PAGES: Final = (
    ConsolePage("", show_overview, "overview.html", "Overview"),
    ConsolePage("/streams", show_streams, "streams.html", "Streams"),
    ConsolePage("/streams/{stream}", show_stream, "stream.html", "Streams"),
    ConsolePage("/streams/{stream}/groups", show_stream_groups, "stream/groups.html", "Streams"),
    ConsolePage("/streams/{stream}/tail", show_stream_tail, "stream/tail.html", "Streams"),
    ConsolePage("/streams/{stream}/storage", show_stream_storage, "stream/storage.html", "Streams"),
    ConsolePage(
        "/streams/{stream}/settings", show_stream_settings, "stream/settings.html", "Streams"
    ),
    ConsolePage("/streams/{stream}/replay", show_stream_replay, "stream/replay.html", "Streams"),
    ConsolePage("/streams/{stream}/write", show_stream_write, "stream/write.html", "Streams"),
    ConsolePage("/streams/{stream}/messages/{offset}", show_message, "message.html", "Streams"),
    ConsolePage("/streams/{stream}/groups/{group}", show_group, "group.html", "Streams"),
    ConsolePage("/topics", show_topics, "topics.html", "Topics"),
    ConsolePage("/topics/{topic}", show_topic, "topic.html", "Topics"),
    ConsolePage("/queues", show_queues, "queues.html", "Queues"),
    ConsolePage("/queues/{queue}", show_queue, "queue.html", "Queues"),
    ConsolePage("/lists", show_lists, "lists.html", "Dirty lists"),
    ConsolePage("/lists/{channel}", show_channel, "channel.html", "Dirty lists"),
    ConsolePage("/ick", show_ick, "ick.html", "Dirty lists"),
    ConsolePage("/timelines", show_timelines, "timelines.html", "Timelines"),
    ConsolePage("/outbox", show_outbox, "outbox.html", "Outbox"),
    ConsolePage("/consumers", show_consumers, "consumers.html", "Consumers"),
    ConsolePage("/consumers/{consumer}", show_consumer, "consumer.html", "Consumers"),
    ConsolePage("/outbox/rows/{row}", show_row, "shared/row.html", "Outbox"),
    ConsolePage("/spark", show_spark, "spark.html", "Spark"),
    ConsolePage("/processes", show_processes, "processes.html", "Processes"),
    ConsolePage("/timed", show_timed, "timed.html", "Timed jobs"),
    ConsolePage("/timed/{job}", show_timed_job, "timed_job.html", "Timed jobs"),
    ConsolePage("/dead", show_dead, "dead.html", "Dead letters"),
    ConsolePage("/audit", show_audit, "audit.html", "Audit"),
    ConsolePage("/store", show_store, "store.html", "Store"),
    ConsolePage("/search", show_search, "search.html", "Search"),
)
FEEDS: Final = (ConsoleFeed("/streams/{stream}/tail/events", follow_stream),)


async def _show_none(_: PageCall) -> Context:
    raise Refused(404, "the console has no such page; the navigation has those that there are")


# What is shown where there is no page, so that a person gets a page all the same.
NO_PAGE: Final = ConsolePage("", _show_none, "", "")
