"""A cluster: insert, delete, select and score over the instances of a pool, one copy of the data.

Every change is one atomic call for each instance that has some of the keys (several when a batch is
large), and may be repeated. Instances are called in parallel; the failure of one affects only its
own keys.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from headwater.errors import FarmMoved, StoreError
from headwater.store.faults import parse_info
from headwater.timeline.cluster.calls import (
    Found,
    Known,
    ReadBatch,
    WriteBatch,
    layout_call,
    member_parts,
    read_known,
    score_calls,
    sets_of,
)
from headwater.timeline.layout import LAYOUT_KEY, FarmLayout, read_layout
from headwater.timeline.pool.instance import Instance, PackedCall
from headwater.timeline.pool.pool import Pool
from headwater.timeline.records import InstanceStatus, Written

_FIELDS: Final = ("epoch", "phase", "old", "new")


class WriteOutcome(NamedTuple):
    """What happened to a write: the counts of what was done, and the keys for which it failed."""

    written: Written
    failed: dict[bytes, StoreError]


class Cluster:
    """One copy of all timelines; each key keeps its newest ``keep`` elements, deletes counted."""

    def __init__(self, pool: Pool, keep: int, epoch: int = 0) -> None:
        self.pool = pool
        self._keep = keep
        self._epoch = epoch
        # Whether an instance has refused a call because there is a newer layout.
        self.outdated = False

    @classmethod
    def open(
        cls, urls: Sequence[str], hash_name: str, timeout_ms: int, keep: int, epoch: int = 0
    ) -> Cluster:
        """Make a cluster of instances; nothing is sent yet."""
        return cls(Pool(urls, hash_name, timeout_ms), keep, epoch)

    async def write(self, batch: WriteBatch) -> WriteOutcome:
        """Merge operations into their keys; below the horizon nothing is kept or accepted."""
        written, failed = Written(), {}
        for keys, replies in await self._spread(
            batch.changes, lambda share: batch.calls(share, self._keep, self._epoch)
        ):
            if isinstance(replies, StoreError):
                failed.update(dict.fromkeys(keys, replies))
            else:
                for reply in replies:
                    written = written.plus(reply)
        return WriteOutcome(written, failed)

    async def select(self, reading: ReadBatch) -> Found:
        """Return a page of each key, or the error of its instance."""
        found = Found(reading.window.limit)
        for keys, replies in await self._spread(
            reading.keys, lambda share: reading.calls(share, self._epoch)
        ):
            if isinstance(replies, StoreError):
                found.failed.update(dict.fromkeys(keys, replies))
            else:
                found.raw.update(zip(keys, chain.from_iterable(replies), strict=True))
        return found

    async def score(
        self, asked: Mapping[bytes, Sequence[bytes]]
    ) -> dict[bytes, Known | StoreError]:
        """Return what is known of members, by key, or the error of its instance."""

        def spell(keys: list[bytes]) -> Iterable[PackedCall]:
            return score_calls({key: asked[key] for key in keys}, self._keep, self._epoch)

        found: dict[bytes, Known | StoreError] = {}
        for keys, replies in await self._spread(asked, spell):
            if isinstance(replies, StoreError):
                found.update(dict.fromkeys(keys, replies))
            else:
                parts = member_parts({key: asked[key] for key in keys})
                for (key, _), reply in zip(parts, chain.from_iterable(replies), strict=True):
                    known, before = read_known(reply), found.get(key)
                    found[key] = before.plus(known) if isinstance(before, Known) else known
        return found

    async def _spread(
        self, keys: Iterable[bytes], spell: Callable[[list[bytes]], Iterable[PackedCall]]
    ) -> list[tuple[list[bytes], list[Any] | StoreError]]:
        """Call each instance for its share; returns the keys of each with its replies or error."""

        async def attempt(instance: Instance, share: list[bytes]) -> list[Any] | StoreError:
            try:
                return [await instance.call(call) for call in spell(share)]
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

    async def scan(
        self, place: int, cursor: int, count: int, kind: str = "zset"
    ) -> tuple[int, list[bytes]]:
        """Take a step through the sets of one instance, in the server's own order.

        Returns the next cursor, 0 at the end, and the names of sets, or of keys of another type
        that are named like them. A set that exists during the whole scan is returned at least
        once. Raises StoreError.
        """
        words = ("SCAN", cursor, "COUNT", count, "TYPE", kind)
        found, names = await self.pool.instances[place].command(*words)
        return int(found), [name for name in names if name[-1:] in (b"+", b"-")]

    async def random_keys(self, place: int, count: int, chance: random.Random) -> list[bytes]:
        """Return up to ``count`` keys of one instance, from a random place of it on.

        A scan that began near the end continues at the start. Raises StoreError.
        """
        found: dict[bytes, None] = {}
        cursor = chance.getrandbits(32)
        for _ in range(4):
            cursor, sets = await self.scan(place, cursor, count)
            found.update(dict.fromkeys(name[:-1] for name in sets))
            if len(found) >= count:
                break
        return list(found)[:count]

    async def generation(self, place: int) -> str:
        """Return the id of an instance's process: cursors of scans are valid for it alone.

        Raises StoreError.
        """
        info = await self.pool.instances[place].command("INFO", "server")
        return parse_info(info)["run_id"]

    async def layouts(self) -> list[FarmLayout | StoreError | None]:
        """Return the layout that each instance knows, None for none, or its error."""

        async def ask(instance: Instance) -> FarmLayout | StoreError | None:
            try:
                return read_layout(await instance.command("HMGET", LAYOUT_KEY, *_FIELDS))
            except StoreError as error:
                return error

        return list(await asyncio.gather(*map(ask, self.pool.instances)))

    async def announce(self, layout: FarmLayout) -> list[FarmLayout]:
        """Announce a layout to every instance; returns what each knows then. Raises StoreError."""
        call = layout_call(layout)
        replies = [await instance.call(call) for instance in self.pool.instances]
        return [found for reply in replies if (found := read_layout(reply)) is not None]

    async def drop(self, place: int, keys: Sequence[bytes]) -> None:
        """Remove timelines from an instance that is not theirs; raises StoreError."""
        names = [name for key in keys for name in sets_of(key)]
        await self.pool.instances[place].command("UNLINK", *names)

    async def look(self) -> list[InstanceStatus]:
        """Return the status of each instance; one that is not available is not an error."""
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
