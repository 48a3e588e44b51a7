"""A cluster: insert, delete, select and score over the instances of a pool, one copy of the data.

Every change is one atomic call for each instance that is concerned (several when a batch is large),
and may be repeated. Instances are asked side by side; one that fails takes only its own keys along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from headwater.errors import FarmMoved, StoreError
from headwater.store.faults import parse_info
from headwater.timeline.cluster.calls import (
    Change,
    Known,
    Page,
    Window,
    layout_call,
    read_known,
    score_calls,
    select_calls,
    sets_of,
    write_calls,
)
from headwater.timeline.layout import LAYOUT_KEY, Layout, read_layout
from headwater.timeline.pool.instance import Instance
from headwater.timeline.pool.pool import Pool
from headwater.timeline.records import InstanceStatus, Written

T = TypeVar("T")


_FIELDS: Final = ("epoch", "phase", "old", "new")


class Outcome(NamedTuple):
    """What became of a write: the figures of what was done, and the keys for which it failed."""

    written: Written
    failed: dict[bytes, StoreError]


class Cluster:
    """One copy of all timelines; each key keeps its newest ``max_size`` elements."""

    def __init__(self, pool: Pool, max_size: int, epoch: int = 0) -> None:
        self.pool = pool
        self._max_size = max_size
        self._epoch = epoch
        # Whether an instance has refused us for knowing of an old layout only.
        self.outdated = False

    @classmethod
    def open(
        cls, urls: Sequence[str], hash_name: str, timeout_ms: int, max_size: int, epoch: int = 0
    ) -> Cluster:
        """Make a cluster of instances; nothing is sent yet."""
        return cls(Pool(urls, hash_name, timeout_ms), max_size, epoch)

    async def write(self, changes: Mapping[bytes, Change], horizon: float) -> Outcome:
        """Merge operations into their keys; below the horizon nothing is kept or taken."""

        async def work(instance: Instance, keys: list[bytes]) -> Written:
            share = changes if len(keys) == len(changes) else {key: changes[key] for key in keys}
            written = Written()
            for call in write_calls(share, self._max_size, horizon, self._epoch):
                written = written.plus(await instance.ask(call))
            return written

        written, failed = Written(), {}
        for keys, result in await self._spread(changes, work):
            if isinstance(result, StoreError):
                failed.update(dict.fromkeys(keys, result))
            else:
                written = written.plus(result)
        return Outcome(written, failed)

    async def select(
        self, keys: Sequence[bytes], window: Window, *, deleted: bool = False
    ) -> dict[bytes, Page | StoreError]:
        """Give a page of each key, or why there is none; of its tombstones when ``deleted``."""

        async def work(instance: Instance, keys: list[bytes]) -> list[Page]:
            sets = [sets_of(key)[deleted] for key in keys]
            pages: list[Page] = []
            for call in select_calls(sets, window, self._epoch):
                pages += [
                    Page(raw, whole=len(raw) < 2 * window.limit) for raw in await instance.ask(call)
                ]
            return pages

        return _by_key(await self._spread(keys, work))

    async def score(
        self, asked: Mapping[bytes, Sequence[bytes]]
    ) -> dict[bytes, Known | StoreError]:
        """Tell what is known of members, by key, or why that cannot be told."""

        async def work(instance: Instance, keys: list[bytes]) -> list[Known]:
            share = {key: asked[key] for key in keys}
            known: list[Known] = []
            for call in score_calls(share, self._max_size, self._epoch):
                known += map(read_known, await instance.ask(call))
            return known

        return _by_key(await self._spread(asked, work))

    async def _spread(
        self, keys: Iterable[bytes], work: Callable[[Instance, list[bytes]], Awaitable[T]]
    ) -> list[tuple[list[bytes], T | StoreError]]:
        """Have each instance do its share; gives the keys of each with its result or failure."""

        async def attempt(instance: Instance, share: list[bytes]) -> T | StoreError:
            try:
                return await work(instance, share)
            except FarmMoved as error:
                self.outdated = True
                return error
            except StoreError as error:
                return error

        shares = self.pool.split(keys)
        if len(shares) == 1:
            return [(shares[0][1], await attempt(*shares[0]))]
        results = await asyncio.gather(*(attempt(*share) for share in shares))
        return [(share, result) for (_, share), result in zip(shares, results, strict=True)]

    async def scan(self, place: int, cursor: int, count: int) -> tuple[int, list[bytes]]:
        """Take a step through the sets of one instance, in the server's own order.

        Gives where to go on, 0 at the end, and the sets' names. What is there all the while is met
        at least once. Raises StoreError.
        """
        words = ("SCAN", cursor, "COUNT", count, "TYPE", "zset")
        found, names = await self.pool.instances[place].command(*words)
        return int(found), [name for name in names if name[-1:] in (b"+", b"-")]

    async def generation(self, place: int) -> str:
        """Name the process of an instance: what a scan gave holds for it alone.

        Raises StoreError.
        """
        info = await self.pool.instances[place].command("INFO", "server")
        return parse_info(info)["run_id"]

    async def layouts(self) -> list[Layout | StoreError | None]:
        """Ask each instance how the farm lies; None of one that knows of nothing."""

        async def ask(instance: Instance) -> Layout | StoreError | None:
            try:
                return read_layout(await instance.command("HMGET", LAYOUT_KEY, *_FIELDS))
            except StoreError as error:
                return error

        return list(await asyncio.gather(*map(ask, self.pool.instances)))

    async def announce(self, layout: Layout) -> list[Layout]:
        """Tell every instance of a layout; gives what each knows then. Raises StoreError."""
        call = layout_call(layout)
        replies = [await instance.ask(call) for instance in self.pool.instances]
        return [found for reply in replies if (found := read_layout(reply)) is not None]

    async def drop(self, place: int, keys: Sequence[bytes]) -> None:
        """Remove timelines from an instance that is not theirs; raises StoreError."""
        names = [name for key in keys for name in sets_of(key)]
        await self.pool.instances[place].command("UNLINK", *names)

    async def look(self) -> list[InstanceStatus]:
        """Tell how each instance is; one that does not serve is no error."""
        return list(await asyncio.gather(*map(_look, self.pool.instances)))

    async def close(self) -> None:
        """Close all connections."""
        await self.pool.close()


async def _look(instance: Instance) -> InstanceStatus:
    try:
        keys, memory = await asyncio.gather(
            instance.command("DBSIZE"), instance.command("INFO", "memory")
        )
    except StoreError as error:
        return InstanceStatus(instance.where, up=False, fault=str(error))
    return InstanceStatus(instance.where, True, keys, int(parse_info(memory)["used_memory"]))


def _by_key(
    results: list[tuple[list[bytes], list[T] | StoreError]],
) -> dict[bytes, T | StoreError]:
    found: dict[bytes, T | StoreError] = {}
    for keys, result in results:
        if isinstance(result, StoreError):
            found.update(dict.fromkeys(keys, result))
        else:
            found.update(zip(keys, result, strict=True))
    return found
