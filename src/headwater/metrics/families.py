"""Every metric by name: its kind, its labels, and what it says.

Labels name objects and outcomes. None is ever a tag, an offset, a member or a key: their number
grows with the data. None is ``instance`` or ``job``, which Prometheus gives to what it scrapes: it
would rename ours. ``docs/reference/metrics.md`` is compared with this table by a test, and so are
the dashboard and the alerts under ``docs/assets/``.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

PREFIX: Final = "headwater_"


class Family(NamedTuple):
    """A metric; ``name`` is without the prefix that all have in common."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """The name as Prometheus knows it."""
        return PREFIX + self.name


_STREAM: Final = ("store", "stream")
_GROUP: Final = ("store", "stream", "group")
_QUEUE: Final = ("store", "queue")
_ICK: Final = ("store", "ick")
_OUTBOX: Final = ("database",)
_PART: Final = ("part",)
_QUERY: Final = ("store", "query", "query_name")

_TABLE: Final = (
    Family("stream_messages_total", "counter", _STREAM, "Messages written since the stream began."),
    Family("stream_first_offset", "gauge", _STREAM, "The first offset that can be read."),
    Family("stream_last_offset", "gauge", _STREAM, "The last offset that can be read."),
    Family("stream_bytes", "gauge", (*_STREAM, "tier"), "Bytes in the store: sealed, or tail."),
    Family("stream_nodes", "gauge", _STREAM, "Nodes of sealed messages."),
    Family("stream_unsealed_messages", "gauge", _STREAM, "Messages that are not in nodes yet."),
    Family("stream_holes", "gauge", _STREAM, "Offsets that compaction has emptied."),
    Family("group_lag_messages", "gauge", _GROUP, "Messages that were not delivered yet."),
    Family("group_lag_seconds", "gauge", _GROUP, "Age of the oldest message not delivered."),
    Family("group_pending_messages", "gauge", _GROUP, "Messages delivered, not acknowledged."),
    Family("group_pending_ranges", "gauge", _GROUP, "Ranges of offsets that are pending."),
    Family("group_oldest_pending_seconds", "gauge", _GROUP, "Age of the oldest pending message."),
    Family("group_due_messages", "gauge", _GROUP, "Pending messages that are due again."),
    Family("group_redelivered_total", "counter", _GROUP, "Messages that were delivered again."),
    Family("group_expired_total", "counter", _GROUP, "Messages that expired before an ack."),
    Family("group_dead_messages", "gauge", _GROUP, "Dead letters."),
    Family("group_missed_messages_total", "counter", _GROUP, "Messages evicted before a read."),
    Family("group_members", "gauge", _GROUP, "Members that have read in the last minute."),
    Family("group_waiting_members", "gauge", _GROUP, "Members that are blocked in a read."),
    Family(
        "reader_lag_messages",
        "gauge",
        (*_STREAM, "reader"),
        "Messages that a SQL consumer, a Spark query or another registered reader has not read.",
    ),
    Family("reader_lag_seconds", "gauge", (*_STREAM, "reader"), "Age of the oldest of them."),
    Family("spark_lag_messages", "gauge", _QUERY, "Messages that a query of Spark has not read."),
    Family("spark_lag_seconds", "gauge", _QUERY, "Age of the oldest of them."),
    Family("spark_epoch", "gauge", _QUERY, "The newest micro-batch that a query has begun."),
    Family("spark_staged_bytes", "gauge", _QUERY, "Bytes that a query staged, not published yet."),
    Family("spark_running", "gauge", _QUERY, "1 while a query runs, 0 when it ended or is silent."),
    Family("queue_messages", "gauge", (*_QUEUE, "state"), "Messages of a queue by state."),
    Family(
        "queue_oldest_seconds",
        "gauge",
        (*_QUEUE, "state"),
        "How long the oldest message of a state has been ready, delayed, held or dead.",
    ),
    Family(
        "queue_wait_seconds",
        "histogram",
        _QUEUE,
        "Time from when a message could be popped until it was.",
    ),
    Family("queue_dead_messages", "gauge", _QUEUE, "Dead letters."),
    Family("queue_pushed_total", "counter", _QUEUE, "Messages pushed since the queue began."),
    Family("queue_popped_total", "counter", _QUEUE, "Messages popped since the queue began."),
    Family("queue_acked_total", "counter", _QUEUE, "Messages acknowledged since it began."),
    Family("queue_expired_total", "counter", _QUEUE, "Messages that outlived their time."),
    Family("queue_waiting_consumers", "gauge", _QUEUE, "Consumers that are blocked in a pop."),
    Family("queue_paused", "gauge", _QUEUE, "1 while the queue delivers nothing."),
    Family("ick_dirty", "gauge", _ICK, "Members of a channel of dirty lists that wait."),
    Family("ick_reserved", "gauge", _ICK, "Members that are reserved and not committed."),
    Family("ick_oldest_seconds", "gauge", _ICK, "How long the oldest ready member has waited."),
    Family("ick_added_total", "counter", _ICK, "Members that were given to adds."),
    Family("ick_folded_total", "counter", _ICK, "Those of them that waited already."),
    Family("outbox_rows", "gauge", _OUTBOX, "Rows that are staged and not streamed yet."),
    Family("outbox_oldest_seconds", "gauge", _OUTBOX, "Wait of the oldest staged row."),
    Family("outbox_batches_total", "counter", _OUTBOX, "Batches that were claimed."),
    Family("outbox_leader", "gauge", _OUTBOX, "1 while a streamer holds the lock."),
    Family(
        "operation_duration_seconds",
        "histogram",
        ("op", "outcome"),
        "Time of operations of this process, retries and waits included.",
    ),
    Family("operation_messages_total", "counter", ("op",), "Messages that operations moved."),
    Family("operation_bytes_total", "counter", ("op",), "Bytes that were sent and received."),
    Family("outcome_unknown_total", "counter", ("op",), "Operations without an answer."),
    Family("retries_total", "counter", ("why",), "Attempts that were made again."),
    Family(
        "part_done_total",
        "counter",
        _PART,
        "Messages, rows or runs that a part has done, but for the last 0.1 s of a killed process.",
    ),
    Family("part_failed_total", "counter", _PART, "Attempts of a part that failed, likewise."),
    Family("part_restarts_total", "counter", _PART, "Times that a part died and began again."),
    Family("part_processes", "gauge", _PART, "Processes in which a part runs now."),
    Family("part_lag", "gauge", _PART, "Messages or rows that wait for a part."),
    Family("http_requests_total", "counter", ("code",), "Requests that were answered, by status."),
    Family("http_connections", "gauge", (), "Open connections of HTTP."),
    Family("sse_tails", "gauge", (), "Tails that are sent as server-sent events."),
    Family("resp_connections", "gauge", (), "Open connections of clients of Redis."),
    Family("resp_blocked", "gauge", (), "Clients of Redis that wait in a blocking command."),
    Family("farm_repairs_total", "counter", (), "Elements of timelines that were repaired."),
    Family("farm_repair_failures_total", "counter", (), "Repairs of elements that failed."),
    Family("farm_divergent_keys_total", "counter", (), "Keys of which a read saw copies differ."),
    Family("farm_instance_up", "gauge", ("cluster", "address"), "1 when the instance serves."),
    Family("store_up", "gauge", ("store",), "1 when the store answered the last sample."),
    Family("alarms", "gauge", ("store", "level"), "Alarms of the console: act, or look."),
    Family("store_fsync", "gauge", ("store", "mode"), "1 for the fsync mode of the store."),
    Family(
        "embedded_restarts_total",
        "counter",
        (),
        "Times that a process of this server has restarted an embedded store that died.",
    ),
    Family("sample_age_seconds", "gauge", ("store",), "Age of what is said of the store."),
    Family("scrape_duration_seconds", "gauge", (), "Time that the last sample took."),
    Family("series_dropped", "gauge", (), "Series left out because there were too many."),
    Family("series_complete", "gauge", (), "1 when no series was left out."),
    Family("build_info", "gauge", ("version",), "The release that answers; always 1."),
)

FAMILIES: Final = {family.name: family for family in _TABLE}
