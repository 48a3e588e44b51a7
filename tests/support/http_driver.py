"""The HTTP API with the manners of the library, so that the models prove both.

What the API has routes for goes through it; everything else goes to the store directly. What a
read of a stream brings over HTTP is compared with what the library reads.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import urlencode

import msgspec
import pyarrow as pa

from headwater import (
    Delivery,
    InvalidInput,
    LeaseLost,
    Message,
    ReusedSequence,
    StaleSequence,
    UnknownGroup,
)
from headwater.doors.catalogue import GROUP, ICK, QUEUE, STREAM
from headwater.kernel.inputs import whole_ms
from headwater.queue.types import HeadedDelivery
from tests.support.api import ApiClient
from tests.support.every_door import HttpDoor, ThroughDoor

_ERRORS: dict[str, Callable[[], Exception]] = {
    "StaleSequence": lambda: StaleSequence("s", "p", 1, 2),
    "ReusedSequence": lambda: ReusedSequence("s", "p", 1, 1, 1),
    "UnknownGroup": lambda: UnknownGroup("s", "g"),
    "LeaseLost": lambda: LeaseLost("c", 0, 0, None),
}
# How many messages a request returns at most.
MOST = 10_000
ARROW = "application/vnd.apache.arrow.stream"


def spelled(value: bytes | str) -> dict[str, str]:
    raw = value.encode() if isinstance(value, str) else value
    return {"value": base64.b64encode(raw).decode(), "encoding": "base64"}


def bytes_of(text: str, encoding: str | None) -> bytes:
    return base64.b64decode(text) if encoding else text.encode()


def headers_of(view: dict[str, Any]) -> dict[str, bytes]:
    encoding = view.get("headers_encoding")
    return {name: bytes_of(text, encoding) for name, text in view.get("headers", {}).items()}


class HttpDriver(ThroughDoor):
    """An object of the library, of which some methods go over HTTP."""

    def __init__(self, direct: Any, client: ApiClient, path: str = "") -> None:
        super().__init__(direct, HttpDoor(client), *path.split("/")[3::2])
        self._client = client
        self._path = path

    def refusal(self, name: str, text: str) -> Exception:
        return _ERRORS.get(name, lambda: InvalidInput(text))()

    def _ask(self, method: str, what: str, body: Any = None, **words: Any) -> Any:
        answer = self._client.ask(method, f"{self._path}{what}", body, **words)
        if answer.status >= 400:
            problem = answer.body
            assert answer.status < 500, problem
            raise self.refusal(problem["title"], problem["detail"])
        return answer.body


class HttpStream(HttpDriver):
    kind = STREAM

    def _written(self, body: Any, options: dict[str, Any], **words: Any) -> range:
        query = f"?{urlencode(options)}" if options else ""
        done = self._ask("POST", f"/messages{query}", body, **words)
        if not done["written"]:
            return range(0)
        assert done["last"] - done["first"] + 1 == done["written"]
        return range(done["first"], done["last"] + 1)

    def write(self, tag: str, value: bytes, *, headers: Any = None) -> int:
        return self.write_many([(tag, value, headers or {})])[0]

    def write_many(self, rows: Iterable[Any], **options: Any) -> range:
        body = [
            {
                "tag": tag,
                **spelled(value),
                "headers": {
                    name: text.decode() for name, text in (more[0] if more else {}).items()
                },
            }
            for tag, value, *more in rows
        ]
        return self._written(body, options)

    def append(self, batch: pa.RecordBatch, **options: Any) -> range:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write(batch)
        return self._written(sink.getvalue().to_pybytes(), options, media=ARROW)

    def read(self, offset: int, count: int, **options: Any) -> list[Message | None]:
        found: list[Message | None] = self._direct.read(offset, count, **options)
        at, seen = offset, []
        while count and at < offset + count:
            query = f"?from={at}&count={min(offset + count - at, MOST)}"
            passage = self._ask("GET", f"/messages{query}")
            seen += passage["messages"]
            if passage["next"] == at:
                break
            at = passage["next"]
        assert [
            (
                one["offset"],
                one["tag"],
                bytes_of(one["value"], one.get("encoding")),
                one["time_ms"],
                headers_of(one),
            )
            for one in seen
            if one["offset"] < offset + count
        ] == [(m.offset, m.tag, m.value, m.time_ms, dict(m.headers)) for m in found if m]
        return found

    def group(self, name: str, *args: Any, **options: Any) -> Any:
        direct = self._direct.group(name, *args, **options)
        if args or set(options) - {"member"}:
            # Its first read sets what was asked for.
            return direct
        return HttpGroup(direct, self._client, f"{self._path}/groups/{name}", self._direct)


class HttpGroup(HttpDriver):
    kind = GROUP

    def __init__(self, direct: Any, client: ApiClient, path: str, stream: Any) -> None:
        super().__init__(direct, client, path)
        self._stream = stream

    def read(self, count: int, **terms: Any) -> list[Message]:
        ack_ms = terms.pop("ack_ms", None)
        expire_ms = terms.pop("expire_ms", None)
        assert not terms
        if not count or (count > MOST and self._stream.info().last > MOST):
            taken: list[Message] = self._direct.read(count, ack_ms=ack_ms, expire_ms=expire_ms)
            return taken
        body = {
            "count": min(count, MOST),
            "member": self.member,
            "ack_ms": None if ack_ms is None else whole_ms(ack_ms),
            "expire_ms": None if expire_ms is None else whole_ms(expire_ms),
        }
        views = self._ask("POST", "/read", body)["messages"]
        if not views:
            return []
        offsets = [view["offset"] for view in views]
        first, last = min(offsets), max(offsets)
        known = {m.offset: m for m in self._stream.read(first, last - first + 1) if m}
        found = [
            msgspec.structs.replace(known[view["offset"]], attempt=view.get("attempt", 0))
            for view in views
        ]
        for view, message in zip(views, found, strict=True):
            value = bytes_of(view["value"], view.get("encoding"))
            assert (view["tag"], value, headers_of(view)) == (
                *(message.tag, message.value),
                dict(message.headers),
            )
        return found

    def redrive(self, count: int) -> tuple[int, int]:
        done = self._ask("POST", "/redrive", {"count": count})
        return done["redriven"], done["gone"]


class HttpQueue(HttpDriver):
    kind = QUEUE

    def push_many(self, values: list[bytes], **options: Any) -> list[str]:
        """Push values over HTTP; those with headers, which may be any bytes, directly."""
        headers = options.pop("headers", None) or [{}] * len(values)
        query = f"/messages?{urlencode(options)}"
        ids: list[str] = []
        pairs = zip(values, headers, strict=True)
        for headed, some in itertools.groupby(pairs, lambda pair: bool(pair[1])):
            part = list(some)
            if headed:
                words = {**options, "headers": [more for _, more in part]}
                ids += self._direct.push_many([value for value, _ in part], **words)
            else:
                ids += self._ask("POST", query, [spelled(value) for value, _ in part])["ids"]
        return ids

    def pop(self, count: int, *, ack_ms: int | None = None) -> list[Delivery]:
        found = self._ask("POST", "/pop", {"count": count, "ack_ms": ack_ms})["deliveries"]
        return [
            HeadedDelivery(
                one["id"],
                bytes_of(one["value"], one.get("encoding")),
                one["attempt"],
                one["receipt"] or "",
                cast("Any", headers_of(one)),
            )
            for one in found
        ]

    def redrive(self, *, count: int) -> int:
        return int(self._ask("POST", "/redrive", {"count": min(count, MOST)})["redriven"])

    def peek(self, count: int, *, state: str = "ready") -> Any:
        found = self._direct.peek(count, state=state)
        if count <= MOST and state not in ("dead", "damaged"):
            shown = self._ask("GET", f"/messages?state={state}&count={count}")["messages"]
            assert [one["id"] for one in shown] == [one.id for one in found]
        return found


class HttpIck(HttpDriver):
    """An Ick; JSON has no infinite scores, so those are added and looked up directly."""

    kind = ICK

    def add(self, scores: dict[str, float]) -> tuple[int, int]:
        if any(math.isinf(score) for score in scores.values()):
            new, lowered = self._direct.add(scores)
            return new, lowered
        members = [{"member": member, "score": score} for member, score in scores.items()]
        done = self._ask("POST", "/add", {"members": members})
        return done["new"], done["lowered"]

    def _reserved(self, done: Any) -> list[tuple[str, float]]:
        if any(one["score"] is None for one in done["members"]):
            known = {row.member: row.score for row in self._direct.scan() if row.place == "cset"}
            return [(one["member"], known[one["member"]]) for one in done["members"]]
        return [(one["member"], one["score"]) for one in done["members"]]

    def reserve(self, n: int, backwash: bool = False) -> list[tuple[str, float]]:
        return self._reserved(self._ask("POST", "/reserve", {"count": n, "backwash": backwash}))

    def exchange(self, n: int, *members: str, backwash: bool = False) -> list[tuple[str, float]]:
        clean = [{"member": member} for member in members]
        body = {"count": n, "members": clean, "backwash": backwash}
        return self._reserved(self._ask("POST", "/exchange", body))
