"""Slots of a cluster that move from one server to another while a test works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import redis
from redis.crc import key_slot

from headwater.log.keys import stream_key
from tests.support.servers import Cluster, Server, node_id


def slot_of(stream: str) -> int:
    """Return the slot of a stream."""
    return int(key_slot(stream_key(stream).encode()))


def owner(cluster: Cluster, slot: int) -> Server:
    """Return the node that has a slot, as the first node knows it."""
    with cluster.nodes[0].client() as admin:
        admin.response_callbacks.clear()
        table: list[Any] = admin.execute_command("CLUSTER", "SLOTS")
    port = next(place[1] for first, last, place, *_ in table if first <= slot <= last)
    return next(node for node in (*cluster.nodes, *cluster.replicas) if node.port == port)


class Move(NamedTuple):
    """A slot on its way, the servers that it leaves and reaches, and a client of each."""

    slot: int
    source: Server
    target: Server
    old: redis.Redis
    new: redis.Redis

    def begin(self) -> None:
        """Let calls for keys that have gone already be redirected."""
        self.new.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        self.old.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))

    def one_key(self) -> bool:
        """Move a key; returns whether there was one."""
        keys = self.old.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1)
        if keys:
            self.old.execute_command("MIGRATE", "127.0.0.1", self.target.port, keys[0], 0, 5000)
        return bool(keys)

    def finish(self) -> None:
        """Move the keys that are left, and give the slot away."""
        while self.one_key():
            pass
        for node in (self.new, self.old):
            node.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))

    def refusals(self, *codes: str) -> int:
        """Return how often the two servers have refused a call by one of these codes."""
        facts = [*self.old.info("errorstats").items(), *self.new.info("errorstats").items()]
        names = {f"errorstat_{code}" for code in codes}
        return sum(int(fact["count"]) for name, fact in facts if name in names)


@contextlib.contextmanager
def move_of(cluster: Cluster, stream: str) -> Iterator[Move]:
    """Prepare to move the slot of a stream to another server."""
    slot = slot_of(stream)
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    with source.client() as old, target.client() as new:
        yield Move(slot, source, target, old, new)
