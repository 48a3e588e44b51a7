"""Consumers of a channel as processes of their own: see zygote.py.

A *row* has a version, which its writer raises before it makes the row dirty. A consumer reads the
version of what it reserved, and keeps it in the index, which must catch up in the end: if it does
not, a member was forgotten. An order names the store, the channel, the lease and the manner.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

import headwater
from headwater import Batch, aio
from headwater.kernel.failures import START_MS
from tests.support.zygote import dying, serve

# Keeps the larger of the version that a member has and the one that is given.
_RAISE = """
for at = 1, #ARGV, 2 do
  local known = tonumber(redis.call('HGET', KEYS[1], ARGV[at]) or -1)
  if tonumber(ARGV[at + 1]) > known then
    redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  end
end
"""


class Table:
    """The rows of a channel, the index that follows them, and who was given what."""

    def __init__(self, store: str, name: str) -> None:
        # The server is killed at times; whatever is done here may be done twice.
        errors: list[type[Exception]] = [redis.ConnectionError, redis.TimeoutError]
        retry = Retry(ConstantBackoff(0.02), 500)
        path = store.removeprefix("unix://")
        self._redis: Any = redis.Redis(unix_socket_path=path, retry=retry, retry_on_error=errors)
        self.name = name

    def raise_versions(self, members: list[str], version: int) -> None:
        self._redis.hset(f"rows:{self.name}", mapping=dict.fromkeys(members, version))

    def follow(self, batch: Batch, who: int) -> None:
        """Bring the index up to date, and note under which token that was done.

        Who was stopped between reading and writing for longer than its lease puts nothing older
        into the place of what the next holder wrote.
        """
        members = [str(member) for member in batch.members]
        versions = self._redis.hmget(f"rows:{self.name}", members)
        pairs = zip(members, versions, strict=True)
        words = [word for member, version in pairs for word in (member, version or 0)]
        self._redis.eval(_RAISE, 1, f"index:{self.name}", *words)
        lease = f"{batch.epoch}/{batch.shard}/{batch.token}"
        self._redis.sadd(f"leases:{self.name}", f"{lease} {who}")

    def rows(self) -> dict[bytes, bytes]:
        return dict(self._redis.hgetall(f"rows:{self.name}"))

    def index(self) -> dict[bytes, bytes]:
        return dict(self._redis.hgetall(f"index:{self.name}"))

    def leases(self) -> list[bytes]:
        """Return every lease that somebody worked under, once for each who did."""
        return [note.split()[0] for note in self._redis.smembers(f"leases:{self.name}")]


class Stop:
    """Whether SIGTERM has come."""

    def __init__(self) -> None:
        self.told = False
        signal.signal(signal.SIGTERM, self._tell)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _tell(self, *_: object) -> None:
        self.told = True


def drain(order: dict[str, Any]) -> None:
    table, steps, stop = Table(order["store"], order["name"]), dying(order), Stop()
    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        channel = hw.ick_channel(order["name"], ack_ms=order["ack_ms"])
        while not stop.told:
            batch = channel.reserve(order["n"])
            if not batch:
                continue
            steps("reserved")
            table.follow(batch, order["who"])
            steps("worked")
            with contextlib.suppress(headwater.LeaseLost):
                channel.commit(batch)
            steps("committed")


async def drain_async(order: dict[str, Any]) -> None:
    table, steps, stop = Table(order["store"], order["name"]), dying(order), Stop()
    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        channel = hw.ick_channel(order["name"], ack_ms=order["ack_ms"])
        while not stop.told:
            batch = await channel.reserve(order["n"])
            if not batch:
                continue
            steps("reserved")
            table.follow(batch, order["who"])
            steps("worked")
            with contextlib.suppress(headwater.LeaseLost):
                await channel.commit(batch)
            steps("committed")


def run(order: dict[str, Any]) -> None:
    # A server that is just being killed is not waited for by the first contact.
    while True:
        with contextlib.suppress(headwater.StoreUnreachable):
            if order["manner"] == "async":
                asyncio.run(drain_async(order))
            else:
                drain(order)
            return


if __name__ == "__main__":
    serve(run)
