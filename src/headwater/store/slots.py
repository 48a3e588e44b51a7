"""Which server of a cluster has a key: learned from the cluster, corrected by its redirections.

Every call of ours names one key, so the owner is known without asking, and a call costs one round
trip. The map only remembers; whoever does the I/O feeds it replies and redirections.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError

Node: TypeAlias = tuple[str, int]

# A redirection may be out of date itself while slots move; more than a few are a circle.
MOST_REDIRECTIONS = 8


class SlotMap:
    """The owners of all slots; ``stale`` says that it is time to learn them again."""

    def __init__(self, seeds: tuple[Node, ...]) -> None:
        self._seeds = seeds
        self._ranges: list[tuple[int, int, Node]] = []
        self._owners: dict[int, Node] = {}
        self.stale = True

    def candidates(self) -> list[Node]:
        """Name the servers to learn from: those that are known, then those of the URL."""
        return list(dict.fromkeys([*self.primaries(), *self._seeds]))

    def primaries(self) -> list[Node]:
        """Name the servers that own slots."""
        return list(dict.fromkeys(node for _, _, node in self._ranges))

    def learn(self, reply: list[Any], asked: Node) -> None:
        """Take over a reply of CLUSTER SLOTS; a server that does not know its name is ``asked``."""
        self._ranges = [
            (first, last, (owner[0].decode() if owner[0] else asked[0], owner[1]))
            for first, last, owner, *_ in reply
        ]
        self._owners = {}
        self.stale = not self._ranges

    def owner(self, key: str) -> Node:
        """Name the server of a key; raises ClusterDownError when no server has its slot."""
        slot = key_slot(key.encode())
        found = self._owners.get(slot)
        if found is None:
            for first, last, node in self._ranges:
                if first <= slot <= last:
                    found = self._owners[slot] = node
                    break
            else:
                self.stale = True
                raise ClusterDownError(f"CLUSTERDOWN no server has hash slot {slot}")
        return found

    def redirect(self, error: AskError, asked: Node, *, moved: bool) -> Node:
        """Name the server that a redirection points to; a move is remembered."""
        node = (error.host or asked[0], error.port)
        if moved:
            self._owners[error.slot_id] = node
            self.stale = True
        return node
