"""The lowest layer of a farm: which instance has a key, and how to reach it without waiting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import redis

from headwater.errors import (
    FarmMoved,
    InvalidInput,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
)
from headwater.store.aio_pipe import AsyncPipe, PackedCommands
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Argument, Call
from headwater.store.directory import default_directory
from headwater.store.faults import Refusal
from headwater.store.url import resolve
from headwater.timeline.layout import instance_url

# ── Hashing ───────────────────────────────────────────────────────────────────────────────────────
# Roshi's hashes of 32 bits, so that Roshi and Headwater find a key on the same instance.
#
# The instance is the hash modulo the number of instances; their number and order decide where keys
# are. HASHES has them by name.


Hash: TypeAlias = Callable[[bytes], int]

_MASK: Final = 0xFFFFFFFF
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619


def murmur3(key: bytes) -> int:
    """MurmurHash3 x86_32 with seed 0."""
    h = 0
    whole = len(key) & ~3
    for place in range(0, whole, 4):
        h ^= _scramble(int.from_bytes(key[place : place + 4], "little"))
        h = ((h << 13) | (h >> 19)) & _MASK
        h = (h * 5 + 0xE6546B64) & _MASK
    if whole < len(key):
        h ^= _scramble(int.from_bytes(key[whole:], "little"))
    h ^= len(key)
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _scramble(k: int) -> int:
    k = (k * 0xCC9E2D51) & _MASK
    k = ((k << 15) | (k >> 17)) & _MASK
    return (k * 0x1B873593) & _MASK


def fnv(key: bytes) -> int:
    """FNV-1 of 32 bits: multiply, then xor; hash/fnv New32 of Go."""
    h = _FNV_OFFSET
    for byte in key:
        h = (h * _FNV_PRIME & _MASK) ^ byte
    return h


def fnva(key: bytes) -> int:
    """FNV-1a of 32 bits: xor, then multiply; hash/fnv New32a of Go."""
    h = _FNV_OFFSET
    for byte in key:
        h = (h ^ byte) * _FNV_PRIME & _MASK
    return h


HASHES: Final[dict[str, Hash]] = {"murmur3": murmur3, "fnv": fnv, "fnva": fnva}


def find_hash(name: str) -> Hash:
    """Return a hash by its name, in any case; raises InvalidInput."""
    if not isinstance(name, str) or name.lower() not in HASHES:
        raise InvalidInput(f"hash must be one of {', '.join(HASHES)}, not {name!r}")
    return HASHES[name.lower()]


# ── Instance ──────────────────────────────────────────────────────────────────────────────────────
# One server of a cluster, called with short timeouts: a farm has others that can answer.
#
# It is connected with its first use, so that a farm opens although servers are down. A call that
# gets no answer within ``timeout_ms`` fails. For a short while after a failure calls fail at once,
# except one that retries: a dead server costs a farm one slow call from time to time, not each of
# them.


# Enough to replace a broken connection once the server is back; no more.
PATIENCE_S: Final = 0.02
REST_S: Final = 0.25


def check_url(text: str) -> str:
    """Return the URL of one server, which may be named by host:port; raises InvalidInput."""
    url = instance_url(text)
    if resolve(url, default_directory()).kind in ("cluster", "sentinel"):
        raise InvalidInput(
            "an instance of a farm is one server, not a Redis Cluster or a service of sentinels; "
            "name its servers, each by host:port or redis://host:port, separated by commas"
        )
    return url


class PackedCall(NamedTuple):
    """A call, and the packed commands that are sent for it: the call, or others that cost less.

    ``read`` turns their replies into the reply of the call, or returns None when the call itself
    must be made.
    """

    call: Call
    packed: PackedCommands
    read: Callable[[list[Any]], Any]

    @classmethod
    def of(cls, call: Call) -> PackedCall:
        """Return a call that is sent as it is."""
        return cls(call, PackedCommands.of(call), itemgetter(0))


class Instance:
    """A server by its URL; ``where`` names it without its password."""

    def __init__(
        self, url: str, timeout_ms: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.url = check_url(url)
        address = resolve(self.url, default_directory())
        self.where = address.safe
        self._embedded = address.kind == "embedded"
        self._timeout_s = timeout_ms / 1000
        self._clock = clock
        self._store: AsyncStore | None = None
        self._pipe: AsyncPipe | None = None
        self._opening = asyncio.Lock()
        self._rests_until = 0.0
        self._closed = False

    async def call(self, call: PackedCall) -> Any:
        """Run a call that may be repeated; raises StoreError when it may not have happened."""
        if self._pipe and self._pipe.is_open and not self._rests_until:
            try:
                reply = call.read(await self._pipe.send(call.packed))
            except TimeoutError:
                raise self._rest() from None
            except (redis.RedisError, OSError):
                reply = None
            if reply is not None:
                return reply

        async def send(store: AsyncStore) -> Any:
            await self._lay_pipe(store)
            return await store.ask(call.call, PATIENCE_S)

        # Whatever failed, the store reports it, and recovers where that is possible.
        return await self._attempt(send)

    async def command(self, *words: Argument) -> Any:
        """Run a command that may be repeated; raises StoreError."""

        async def send(store: AsyncStore) -> Any:
            try:
                return (await store.command(*words))[0]
            except (redis.RedisError, OSError) as error:
                raise StoreUnreachable(self.where, str(error)) from error

        return await self._attempt(send)

    async def _attempt(self, work: Callable[[AsyncStore], Awaitable[Any]]) -> Any:
        now = self._clock()
        if now < self._rests_until:
            raise StoreUnreachable(self.where, "it was not available a moment ago")
        if self._rests_until:
            # One call retries; the others fail until it is over.
            self._rests_until = now + self._timeout_s
        try:
            if self._embedded:
                # Starting a server takes longer than calling one.
                await self._open()
            async with asyncio.timeout(self._timeout_s):
                store = self._store or await self._open()
                reply = await work(store)
        except TimeoutError:
            raise self._rest() from None
        except (StoreUnreachable, OutcomeUnknown):
            self._rests_until = self._clock() + REST_S
            raise
        except Refusal as refusal:
            self._rests_until = 0.0
            if refusal.code == "LAYOUT":
                raise FarmMoved(self.where, int(refusal.words[0])) from None
            raise StoreError(
                f"{self.where} refuses a call of timelines: {refusal}; it has functions of another "
                "release perhaps, so run headwater doctor on it"
            ) from None
        except StoreError:
            # The server answered, with an error: other calls may succeed.
            self._rests_until = 0.0
            raise
        self._rests_until = 0.0
        return reply

    async def _open(self) -> AsyncStore:
        async with self._opening:
            if self._closed:
                raise StoreError(f"the farm that asks {self.where} is closed; open it again")
            if self._store is None:
                self._store = await AsyncStore.open(self.url, check_rights=False, wait_s=0)
            return self._store

    async def _lay_pipe(self, store: AsyncStore) -> None:
        """Open a pipe for the next calls; when that fails, they go through the store."""
        async with self._opening:
            if not self._closed and not (self._pipe and self._pipe.is_open):
                with contextlib.suppress(redis.RedisError, OSError):
                    self._pipe = await store.pipe(self._timeout_s)

    def _rest(self) -> StoreUnreachable:
        """Let calls fail at once for a while, after one that was not answered in time."""
        self._rests_until = self._clock() + REST_S
        return StoreUnreachable(self.where, f"no answer within {self._timeout_s * 1000:.0f} ms")

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.abort(redis.ConnectionError("the farm is closed"))
        if self._store is not None:
            await self._store.close()


# ── Pool ──────────────────────────────────────────────────────────────────────────────────────────


class Pool:
    """Instances in a fixed order; the hash of a key modulo their number is the one that has it."""

    def __init__(self, urls: Sequence[str], hash_name: str, timeout_ms: int) -> None:
        if not urls:
            raise InvalidInput("a cluster needs at least one instance; name it as host:port")
        self.instances = tuple(Instance(url, timeout_ms) for url in urls)
        self._hash = lru_cache(maxsize=65536)(find_hash(hash_name))

    def index(self, key: bytes) -> int:
        """Return the place of the instance that has a key."""
        count = len(self.instances)
        return self._hash(key) % count if count > 1 else 0

    def split(self, keys: Iterable[bytes]) -> list[tuple[Instance, list[bytes]]]:
        """Return each instance that has some of the keys, with those keys."""
        if len(self.instances) == 1:
            return [(self.instances[0], list(keys))]
        shares: dict[int, list[bytes]] = {}
        for key in keys:
            shares.setdefault(self.index(key), []).append(key)
        return [(self.instances[index], share) for index, share in shares.items()]

    async def close(self) -> None:
        """Close all connections of all instances."""
        for instance in self.instances:
            await instance.close()
