"""Topics, groups over them, and channels of dirty lists over HTTP, with the manners of the library.

What the API has no route for goes to the store directly, as in ``http_driver``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from headwater import Batch, TopicMessage
from headwater.doors.catalogue import CHANNEL, TOPIC, TOPIC_GROUP
from headwater.kernel.inputs import whole_ms
from headwater.log.types import HeadedTopicMessage, Placed, Redriven
from headwater.views.icks import BatchView
from tests.support.api import ApiClient
from tests.support.http_driver import ARROW, MOST, HttpDriver, bytes_of, headers_of, spelled


class HttpTopic(HttpDriver):
    """A topic; its partitions are streams of the library."""

    kind = TOPIC

    def _written(self, body: Any, options: dict[str, Any], **words: Any) -> dict[int, range]:
        query = f"?{urlencode(options)}" if options else ""
        done = self._ask("POST", f"/messages{query}", body, **words)
        placed = done["partitions"].items()
        return {int(place): range(at["first"], at["last"] + 1) for place, at in placed}

    def write(self, tag: str, value: bytes, *, headers: Any = None) -> Placed:
        ((place, offsets),) = self.write_many([(tag, value, headers or {})]).items()
        return Placed(place, offsets[0])

    def write_many(self, rows: Iterable[Any], **options: Any) -> dict[int, range]:
        body = [
            {
                "tag": tag,
                **spelled(value),
                "headers": {name: text.decode() for name, text in headers.items()},
            }
            for tag, value, headers in rows
        ]
        return self._written(body, options)

    def append(self, table: pa.Table) -> dict[int, range]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return self._written(sink.getvalue().to_pybytes(), {}, media=ARROW)

    def group(self, name: str, **options: Any) -> Any:
        direct = self._direct.group(name, **options)
        return HttpTopicGroup(direct, self._client, f"{self._path}/groups/{name}")


class HttpTopicGroup(HttpDriver):
    """A group over a topic; a read of nothing creates it, as it is set, in the store."""

    kind = TOPIC_GROUP

    def read(self, count: int, **terms: Any) -> list[TopicMessage]:
        ack_ms = terms.pop("ack_ms", None)
        expire_ms = terms.pop("expire_ms", None)
        assert not terms
        if not count:
            taken: list[TopicMessage] = self._direct.read(0, ack_ms=ack_ms, expire_ms=expire_ms)
            return taken
        body = {
            "count": min(count, MOST),
            "member": self.member,
            "ack_ms": None if ack_ms is None else whole_ms(ack_ms),
            "expire_ms": None if expire_ms is None else whole_ms(expire_ms),
        }
        return [
            HeadedTopicMessage(
                one["partition"],
                one["offset"],
                one["tag"],
                bytes_of(one["value"], one.get("encoding")),
                one["time_ms"],
                one.get("attempt", 0),
                headers_of(one),  # type: ignore[arg-type]  # a plain map shows the same
            )
            for one in self._ask("POST", "/read", body)["messages"]
        ]

    def redrive(self, count: int) -> dict[int, Redriven]:
        done = self._ask("POST", "/redrive", {"count": count})["redriven"]
        return {int(place): Redriven(**moved) for place, moved in done.items()}

    def discard(self, letters: Any = None, *, count: int) -> int:
        if letters is not None:
            return int(self._direct.discard(letters, count=count))
        return int(self._ask("POST", "/discard", {"count": count})["discarded"])


class HttpChannel(HttpDriver):
    """A channel of dirty lists, for one consumer, which leases for as long as the model says."""

    kind = CHANNEL

    def __init__(self, direct: Any, client: ApiClient, path: str, ack_ms: int) -> None:
        super().__init__(direct, client, path)
        self._ack_ms = ack_ms

    def add(self, scores: dict[str, float], *, not_before: int | None = None) -> tuple[int, int]:
        # A channel begins with the number of shards that its first user says.
        if not_before is not None or self._direct.stats() is None:
            new, lowered = self._direct.add(scores, not_before=not_before)
            return new, lowered
        members = [{"member": member, "score": score} for member, score in scores.items()]
        done = self._ask("POST", "/add", {"members": members})
        return done["new"], done["lowered"]

    def reserve(self, n: int) -> Batch:
        body = {"count": n, "consumer": self.consumer, "ack_ms": self._ack_ms}
        view = msgspec.convert(self._ask("POST", "/reserve", body), BatchView)
        return cast(Batch, view.original())

    def _end(self, verb: str, batch: Batch, members: tuple[str, ...]) -> Any:
        chosen = [{"member": member} for member in members]
        view = msgspec.to_builtins(BatchView.of(batch))
        body = {
            "batch": view,
            "members": chosen,
            "ack_ms": self._ack_ms,
        }
        return self._ask("POST", f"/{verb}", body)

    def renew(self, batch: Batch, *, ack_ms: int) -> int:
        view = msgspec.to_builtins(BatchView.of(batch))
        body = {"batch": view, "ack_ms": ack_ms}
        return int(self._ask("POST", "/renew", body)["until_ms"])

    def commit(self, batch: Batch, *members: str) -> int:
        return int(self._end("commit", batch, members)["committed"])

    def release(self, batch: Batch, *members: str) -> int:
        return int(self._end("release", batch, members)["released"])
