"""The instances among which a cluster spreads its keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from headwater.errors import InvalidInput
from headwater.timeline.pool.hashing import find_hash
from headwater.timeline.pool.instance import Instance


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
