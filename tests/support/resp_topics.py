"""Topics, groups over them, and channels of dirty lists through the RESP door.

What the door has no command for goes to the store directly, as in ``resp_driver``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from headwater import Batch, TopicMessage
from headwater.doors.catalogue import CHANNEL, TOPIC, TOPIC_GROUP
from headwater.ick.types import Layout, Reserved
from headwater.kernel.inputs import whole_ms
from headwater.log.types import HeadedTopicMessage, Placed, Redriven
from tests.support.resp_driver import Driver, pairs


class DoorTopic(Driver):
    """A topic; its partitions are streams of the library."""

    kind = TOPIC

    def write(self, tag: str, value: bytes, *, headers: Any = None) -> Placed:
        if headers:
            words = [word for pair in headers.items() for word in pair]
            ((place, first, last),) = self._ask(
                "TPWRITE", self.name, "HEADERS", len(headers), *words, "ENTRIES", tag, value
            )
            assert first == last
            return Placed(place, first)
        return Placed(*self._ask("TPWRITE", self.name, tag, value))

    def write_many(self, rows: Iterable[Any], **options: Any) -> dict[int, range]:
        rows = list(rows)
        if any(len(row) == 3 and row[2] for row in rows):
            found: dict[int, range] = self._direct.write_many(rows, **options)
            return found
        words: list[Any] = []
        if "producer" in options:
            words += ["PRODUCER", options["producer"], options["sequence"]]
        flat = [part for row in rows for part in row[:2]]
        written = self._ask("TPWRITE", self.name, *words, "ENTRIES", *flat)
        return {place: range(first, last + 1) for place, first, last in written}

    def group(self, name: str, **options: Any) -> Any:
        return DoorTopicGroup(self._direct.group(name, **options), self._client, self.name, name)


class DoorTopicGroup(Driver):
    """A group over a topic; a read of nothing creates it, as it is set, in the store."""

    kind = TOPIC_GROUP

    def read(self, count: int, **terms: Any) -> list[TopicMessage]:
        ack_ms = terms.pop("ack_ms", None)
        expire_ms = terms.pop("expire_ms", None)
        assert not terms
        if not count:
            taken: list[TopicMessage] = self._direct.read(0, ack_ms=ack_ms, expire_ms=expire_ms)
            return taken
        self._client.client_setname(self.member)
        retry: list[Any] = []
        if ack_ms is not None:
            retry = ["RETRY", whole_ms(ack_ms), 0 if expire_ms is None else whole_ms(expire_ms)]
        words = ["TPREAD", self.topic, self.name, count, *retry, "WITHATTEMPT", "WITHHEADERS"]
        return [
            HeadedTopicMessage(
                place,
                offset,
                tag.decode(),
                value,
                0,
                attempt,
                cast("Any", {name.decode(): each for name, each in pairs(headers)}),
            )
            for place, offset, tag, value, attempt, headers in self._ask(*words)
        ]

    def redrive(self, count: int) -> dict[int, Redriven]:
        done = self._ask("TPREDRIVE", self.topic, self.name, "COUNT", count)
        return {place: Redriven(returned, gone) for place, returned, gone in done}

    def dead(self, count: int) -> Any:
        letters = self._direct.dead(count)
        shown = self._ask("TPDEAD", self.topic, self.name, "COUNT", count)
        assert [row[:4] for row in shown] == [
            [one.partition, one.origin, one.tag.encode(), one.value] for one in letters
        ]
        return letters


class DoorChannel(Driver):
    """A channel of dirty lists, for one consumer, which leases for as long as the model says."""

    kind = CHANNEL

    def __init__(self, direct: Any, client: Any, ack_ms: int) -> None:
        super().__init__(direct, client, direct.name)
        self._ack_ms = ack_ms

    def add(self, scores: dict[str, float], *, not_before: int | None = None) -> tuple[int, int]:
        # A channel begins with the number of shards that its first user says.
        if self._direct.stats() is None or not scores:
            new, lowered = self._direct.add(scores, not_before=not_before)
            return new, lowered
        words = [] if not_before is None else ["NOTBEFORE", not_before]
        words += [word for member, score in scores.items() for word in (repr(score), member)]
        new, lowered = self._ask("CHADD", self.name, *words)
        return new, lowered

    def reserve(self, n: int) -> Batch:
        found = self._ask("CHRESERVE", self.name, self.consumer, n, "RETRY", self._ack_ms)
        if found is None:
            return Batch(self.name)
        lease, until_ms, rows = found
        epoch, shard, token, _ = map(int, lease.split(b":"))
        reserved = (
            Reserved(member.decode(), float(score), int(made)) for member, score, made in rows
        )
        return Batch(self.name, epoch, shard, token, until_ms, tuple(reserved))

    def _end(self, command: str, batch: Batch, members: tuple[str, ...]) -> int:
        chosen = [row for row in batch if not members or row.member in members]
        if not chosen:
            return 0
        lease = f"{batch.epoch}:{batch.shard}:{batch.token}:{self._ack_ms}"
        words = [word for row in chosen for word in (row.generation, row.member)]
        return int(self._ask(command, self.name, lease, *words))

    def commit(self, batch: Batch, *members: str) -> int:
        return self._end("CHCOMMIT", batch, members)

    def release(self, batch: Batch, *members: str) -> int:
        return self._end("CHRELEASE", batch, members)

    def renew(self, batch: Batch, *, ack_ms: int) -> int:
        lease = f"{batch.epoch}:{batch.shard}:{batch.token}:{self._ack_ms}"
        return int(self._ask("CHRENEW", self.name, lease, "RETRY", ack_ms))

    def reshard(self, shards: int) -> Layout:
        number, settled, leases = self._ask("CHSHARDS", self.name, shards)
        return Layout(number, bool(settled), leases)
