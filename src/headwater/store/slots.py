"""Which server of a cluster has a key: learned from the cluster, corrected by its redirections.

Every call of ours names one key, so the owner is known without asking, and a call costs one round
trip. The map only remembers; the code that does the I/O feeds it replies and redirections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from headwater.store.call import Key

Node: TypeAlias = tuple[str, int]

# A redirection may be out of date itself while slots move; more than a few are a circle.
MOST_REDIRECTIONS = 8


class SlotMap:
    """The owners of all slots; ``stale`` says that it is time to learn them again."""

    def __init__(self, seeds: tuple[Node, ...]) -> None:
        self._seeds = seeds
        self._ranges: list[tuple[int, int, Node]] = []
        self._owners: dict[int, Node] = {}
        self._candidates = deque(seeds)
        self.stale = True

    def candidates(self) -> list[Node]:
        """Return the servers to learn from, replicas too, another one first each time.

        So a server that is down, or cut off from the others, is not asked first again.
        """
        self._candidates.rotate(-1)
        return list(self._candidates)

    def primaries(self) -> list[Node]:
        """Return the servers that own slots."""
        return list(dict.fromkeys(node for _, _, node in self._ranges))

    def learn(self, reply: list[Any], asked: Node) -> None:
        """Learn from a reply of CLUSTER SLOTS; a server that has no name is ``asked``."""
        ranges, known = [], dict.fromkeys(self._seeds)
        for first, last, *servers in reply:
            nodes = [(host.decode() if host else asked[0], port) for host, port, *_ in servers]
            known.update(dict.fromkeys(nodes))
            ranges.append((first, last, nodes[0]))
        self._ranges, self._owners = ranges, {}
        self._candidates = deque(known)
        self.stale = not ranges

    def owner(self, key: Key) -> Node:
        """Return the server of a key; raises ClusterDownError when no server has its slot."""
        slot = key_slot(key.encode() if isinstance(key, str) else key)
        found = self._owners.get(slot)
        if found is None:
            for first, last, node in self._ranges:
                if first <= slot <= last:
                    found = self._owners[slot] = node
                    break
            else:
                self.stale = True
                raise ClusterDownError(f"no server has hash slot {slot}", status_code="CLUSTERDOWN")
        return found

    def redirect(self, error: AskError, asked: Node, *, moved: bool) -> Node:
        """Return the server that a redirection points to; a move is remembered."""
        node = (error.host or asked[0], error.port)
        if moved:
            self._owners[error.slot_id] = node
            self.stale = True
        return node


def still_moving() -> TryAgainError:
    """Return the error for a call that was redirected too often."""
    return TryAgainError("the slot is moving", status_code="TRYAGAIN")


class Scattered:
    """Commands for several servers, sent in rounds: what was redirected goes into the next one.

    ``left`` are the places of those to be sent. ``asked`` are few, and are to be sent one by one:
    their slots are being migrated, key by key.
    """

    def __init__(self, slots: SlotMap, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> None:
        self._slots = slots
        self._commands = commands
        self._rounds = 0
        self.replies: list[Any] = [None] * len(commands)
        self.left: Sequence[int] = range(len(commands))
        self.asked: list[int] = []

    def parts(self) -> list[tuple[Node, list[int], list[tuple[Key, tuple[Any, ...]]]]]:
        """Return what each server is to be sent in the next round, and its places."""
        by_node: dict[Node, list[int]] = {}
        for place in self.left:
            try:
                node = self._slots.owner(self._commands[place][0])
            except ClusterDownError as error:
                self.replies[place] = error
            else:
                by_node.setdefault(node, []).append(place)
        self._rounds += 1
        self.left = []
        return [
            (node, places, [self._commands[place] for place in places])
            for node, places in by_node.items()
        ]

    def take(self, node: Node, places: Sequence[int], replies: Sequence[Any]) -> None:
        """Keep what a server replied; what it redirected goes into the next round."""
        moved: list[int] = []
        for place, reply in zip(places, replies, strict=True):
            self.replies[place] = reply
            if isinstance(reply, MovedError):
                self._slots.redirect(reply, node, moved=True)
                self.replies[place] = still_moving()
                moved.append(place)
            elif isinstance(reply, AskError):
                self.asked.append(place)
        if self._rounds < MOST_REDIRECTIONS:
            self.left = [*self.left, *moved]

    def fail(self, error: Exception) -> None:
        """Put an error in place of the replies that are still to come."""
        for place in self.left:
            self.replies[place] = error
        self.left = []
