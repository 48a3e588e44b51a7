"""The text format of Prometheus, and every metric by name: its kind, its labels, what it says.

Written by hand, because a page of 10,000 objects has 200,000 lines: prometheus-client needs several
seconds for these, and they come from a store and not from counters of this process
(docs/decisions/0028-metrics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

# Labels name objects and outcomes. None is ever a tag, an offset, a member or a key: their number
# grows with the data. None is ``instance`` or ``job``, which Prometheus gives to what it scrapes:
# it would rename ours. ``docs/reference/metrics.md`` is compared with this table by a test, and so
# are the dashboard and the alerts under ``docs/assets/``.
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


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SPECIAL: Final = frozenset('\\"\n')
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(**labels: str) -> str:
    """Return labels as they stand behind a name; a name in a store may hold any character."""
    inside = ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])
    return f"{{{inside}}}" if inside else ""


def with_label(labels: str, name: str, value: str) -> str:
    """Return labels with one more behind them."""
    return f'{labels[:-1]},{name}="{_escaped(value)}"}}'


def _escaped(value: str) -> str:
    return value if _SPECIAL.isdisjoint(value) else value.translate(_ESCAPES)


def histogram_lines(
    labels: str, bounds: Iterable[float], counts: Sequence[int], total: float
) -> Iterator[str]:
    """Yield the lines of a histogram, behind its name; counts are of each span alone."""
    inside = labels[1:-1]
    seen = 0
    for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
        seen += count
        yield f'_bucket{{{inside},le="{bound}"}} {seen}'
    yield f"_sum{labels} {total}"
    yield f"_count{labels} {seen}"


class Page:
    """A page of metrics being built; takes a limited number of lines, and counts the others."""

    def __init__(self, most: int | None = None) -> None:
        self._lines: dict[str, list[str]] = {}
        self._left = most
        self.dropped = 0

    def add(self, labels: str, **samples: float | None) -> None:
        """Add samples of several metrics that have the same labels, all of them or none.

        A sample that is None is left out.
        """
        known = {name: value for name, value in samples.items() if value is not None}
        if self._takes(len(known)):
            for name, value in known.items():
                self._lines.setdefault(name, []).append(f"{labels} {value}")

    def _takes(self, count: int) -> bool:
        """Return whether there is room for this many lines, which is taken then."""
        if self._left is None:
            return True
        if count > self._left:
            self._left = 0
            self.dropped += count
            return False
        self._left -= count
        return True

    def add_lines(self, name: str, lines: Iterable[str]) -> None:
        """Add lines of a histogram, which begin behind its name."""
        self._lines.setdefault(name, []).extend(lines)

    def add_histogram(
        self, name: str, labels: str, bounds: Iterable[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram: how many up to each bound, then beyond, and the sum of all."""
        if self._takes(len(counts) + 2):
            self.add_lines(name, histogram_lines(labels, bounds, counts, total))

    def blocks(self) -> Iterator[bytes]:
        """Yield the page metric by metric, in the order of the table."""
        for family in FAMILIES.values():
            lines = self._lines.get(family.name)
            if lines:
                full = family.full_name
                head = f"# HELP {full} {family.help}\n# TYPE {full} {family.kind}\n{full}"
                yield (head + f"\n{full}".join(lines) + "\n").encode()

    def text(self) -> str:
        """Return the page, metrics in the order of the table."""
        return b"".join(self.blocks()).decode()
