"""The page of metrics: what is sampled of a store and counted in this process, for Prometheus.

It is made of the sample that everybody shares, and made again beside the scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from headwater.ick.types import ChannelStats
from headwater.kernel.inputs import check_int
from headwater.kernel.packaging import __version__
from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.exposition import Page, label_text, with_label
from headwater.metrics.history import age_s
from headwater.metrics.operations import OperationMetrics
from headwater.metrics.sweeps import ASKED_S, StoreSample, StoreWatch
from headwater.queue.types import WAIT_BOUNDS_MS, QueueStats
from headwater.spark.queries.status import QueryStatus
from headwater.timeline.records import InstanceStatus
from headwater.views.overview import live_members
from headwater.views.streams import lag_of

if TYPE_CHECKING:
    # The extra `sql` brings what it needs, and a server does without.
    from headwater.outbox.status import Status


_WAIT_BOUNDS_S: Final = tuple(bound / 1000 for bound in WAIT_BOUNDS_MS)


def add_stream(page: Page, store: str, info: StreamInfo) -> None:
    """Add the metrics of a stream and of its registered readers."""
    labels = label_text(store=store, stream=info.name)
    page.add(
        labels,
        stream_messages_total=info.last,
        stream_first_offset=info.first,
        stream_last_offset=info.last,
        stream_nodes=info.nodes,
        stream_unsealed_messages=info.last - info.sealed,
        stream_holes=info.last - info.first + 1 - info.length,
    )
    for tier, size in (("sealed", info.bytes - info.tail_bytes), ("tail", info.tail_bytes)):
        page.add(with_label(labels, "tier", tier), stream_bytes=size)
    for reader, needed in info.readers.items():
        page.add(
            with_label(labels, "reader", reader),
            reader_lag_messages=lag_of(info, needed),
            reader_lag_seconds=info.reader_lag_ms[reader] / 1000,
        )


def add_group(page: Page, store: str, stream: str, info: GroupInfo, now_ms: int) -> None:
    """Add the metrics of a group; ages are those at a moment of the store's clock."""
    page.add(
        label_text(store=store, stream=stream, group=info.name),
        group_lag_messages=info.lag,
        group_lag_seconds=age_s(info.new_since_ms, now_ms),
        group_pending_messages=info.pending,
        group_pending_ranges=info.pending_ranges,
        group_oldest_pending_seconds=age_s(info.pending_since_ms, now_ms),
        group_due_messages=info.due,
        group_redelivered_total=info.redelivered,
        group_expired_total=info.expired,
        group_dead_messages=info.dead,
        group_missed_messages_total=info.missed,
        group_members=len(live_members(info, now_ms=now_ms)),
        group_waiting_members=info.waiting,
    )


def add_queue(page: Page, store: str, stats: QueueStats) -> None:
    """Add the metrics of a queue."""
    page.add(
        label_text(store=store, queue=stats.name),
        queue_dead_messages=stats.dead,
        queue_pushed_total=stats.pushed,
        queue_popped_total=stats.popped,
        queue_acked_total=stats.acked,
        queue_expired_total=stats.expired,
        queue_waiting_consumers=stats.waiting,
        queue_paused=int(stats.paused),
    )
    page.add_histogram(
        "queue_wait_seconds",
        label_text(store=store, queue=stats.name),
        _WAIT_BOUNDS_S,
        stats.waits,
        stats.waited_ms / 1000,
    )
    for state in ("ready", "delayed", "unacked", "dead", "damaged"):
        labels = label_text(store=store, queue=stats.name, state=state)
        page.add(labels, queue_messages=getattr(stats, state))
    for state, age_ms in (
        ("ready", stats.oldest_ms),
        ("delayed", stats.oldest_delayed_ms),
        ("unacked", stats.oldest_unacked_ms),
        ("dead", stats.oldest_dead_ms),
    ):
        labels = label_text(store=store, queue=stats.name, state=state)
        page.add(labels, queue_oldest_seconds=(age_ms or 0) / 1000)


def add_channel(page: Page, store: str, stats: ChannelStats) -> None:
    """Add the metrics of a channel of dirty lists."""
    page.add(
        label_text(store=store, ick=stats.name),
        ick_dirty=stats.ready + stats.later,
        ick_reserved=stats.reserved,
        ick_oldest_seconds=stats.waited_ms / 1000,
        ick_added_total=stats.added,
        ick_folded_total=stats.added - stats.entered,
    )


def add_query(page: Page, store: str, status: QueryStatus) -> None:
    """Add the metrics of a streaming query of Spark."""
    page.add(
        label_text(store=store, query=status.query, query_name=status.name),
        spark_lag_messages=status.lag,
        spark_lag_seconds=status.lag_ms / 1000,
        spark_epoch=status.epoch,
        spark_staged_bytes=status.staged_bytes,
        spark_running=int(status.state == "running"),
    )


def add_outbox(page: Page, database: str, status: Status) -> None:
    """Add the metrics of an outbox."""
    page.add(
        label_text(database=database),
        outbox_rows=status.backlog,
        outbox_oldest_seconds=(status.oldest_ms or 0) / 1000,
        outbox_batches_total=status.batch,
        outbox_leader=int(status.streaming),
    )


def add_instances(page: Page, instances: Iterable[InstanceStatus]) -> None:
    """Add which instances of a farm of timelines serve."""
    for one in instances:
        labels = label_text(cluster=str(one.cluster), address=one.instance)
        page.add(labels, farm_instance_up=int(one.up))


Extra = Callable[[Page], Awaitable[None]]

# A page this young is returned as it is.
FRESH_S: Final = 5.0
MAX_SERIES: Final = 250_000
# After this many objects other tasks run: a page may have 20 MB.
_SLICE: Final = 100


def check_series(most: int) -> int:
    """Return how many series a page may have; raises InvalidInput for what cannot be."""
    return check_int(most, "max_series", 1000, 10**7)


class Sampler:
    """The metrics of a store and of this process. Raises InvalidInput for a cap below 1000."""

    def __init__(
        self,
        watch: StoreWatch,
        operations: OperationMetrics,
        *,
        max_series: int = MAX_SERIES,
        extras: Sequence[Extra] = (),
    ) -> None:
        self._watch = watch
        self._operations = operations
        self._most = check_series(max_series)
        self._extras = extras
        self._store = watch.hw.store.where
        self._page = b""
        self._made_of: StoreSample | None = None
        self._dropped = 0
        self._asked_at = -float("inf")
        self._making = asyncio.Lock()
        watch.follow(self._renew)

    async def page(self) -> bytes:
        """Return the metrics. What is said of the store is at most some seconds old.

        A store that does not answer is a metric, too: ``headwater_store_up`` is 0.
        """
        self._asked_at = self._watch.clock()
        sample = await self._watch.newest(FRESH_S)
        async with self._making:
            if self._made_of is None:
                await self._make(sample)
        return self._own_page() + self._page

    async def _renew(self, sample: StoreSample) -> None:
        """Make the page again beside the scrapes, as long as there are some."""
        if self._watch.clock() - self._asked_at > ASKED_S:
            return
        async with self._making:
            if self._made_of is None or sample.at - self._made_of.at >= FRESH_S / 2:
                await self._make(sample)

    async def _make(self, sample: StoreSample) -> None:
        page = Page(self._most)
        if sample.missing is None:
            mode = await self._watch.fsync_mode()
            if mode is not None:
                page.add(label_text(store=self._store, mode=mode), store_fsync=1)
        await self._add_objects(page, sample)
        for add in self._extras:
            await add(page)
        labels = label_text(store=self._store)
        page.add(labels, store_up=int(sample.missing is None))
        blocks = []
        for block in page.blocks():
            blocks.append(block)
            await asyncio.sleep(0)
        self._page, self._dropped = b"".join(blocks), page.dropped
        self._made_of = sample

    async def _add_objects(self, page: Page, sample: StoreSample) -> None:
        store, now_ms = self._store, sample.now_ms
        for place, stream in enumerate(sample.streams):
            add_stream(page, store, stream)
            if place % _SLICE == 0:
                await asyncio.sleep(0)
        for place, row in enumerate(sample.groups):
            add_group(page, store, row.stream, row.group, now_ms)
            if place % _SLICE == 0:
                await asyncio.sleep(0)
        for queue in sample.queues:
            add_queue(page, store, queue)
        for channel in sample.channels:
            add_channel(page, store, channel)
        for query in sample.queries:
            add_query(page, store, query)

    def _own_page(self) -> bytes:
        """Return what is known without the store, as it is now."""
        page, sample = Page(), self._made_of
        self._operations.add_to(page)
        page.add(
            "",
            scrape_duration_seconds=round(0.0 if sample is None else sample.took_s, 6),
            series_dropped=self._dropped,
            series_complete=int(not self._dropped),
        )
        page.add(label_text(version=__version__), build_info=1)
        age = None if sample is None else round(self._watch.clock() - sample.at, 3)
        page.add(label_text(store=self._store), sample_age_seconds=age)
        return b"".join(page.blocks())
