"""What the server answers to a request: its route, its token, and what the farm returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.declaring import Scope
from headwater.metrics.exposition import CONTENT_TYPE
from headwater.serve.batching import Batcher, BatchPart
from headwater.serve.http.authorization import LOOKED_AT, authorize, check_local
from headwater.serve.http.messages import (
    Admitted,
    Refused,
    Reply,
    Request,
    StreamedReply,
    own_fault,
)
from headwater.serve.timeline import lenient as roshis
from headwater.serve.timeline import wire
from headwater.serve.timeline.prometheus import ServerMetrics
from headwater.serve.tokens import Tokens
from headwater.timeline.cluster import Window
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.reading import Answer, Background
from headwater.timeline.records import InstanceStatus, Spelled, Written

Answered: TypeAlias = Callable[[Reply], None]

_WRITES: Final = {"insert": "inserted", "delete": "deleted"}
# Whether the server is alive may be asked by everybody.
_SCOPES: Final = {
    "insert": Scope.WRITE,
    "delete": Scope.WRITE,
    "select": Scope.READ,
    "metrics": Scope.READ,
    "health": None,
}


class RequestReading(Protocol):
    """How requests are read: strictly, or as Roshi does."""

    def route(self, method: str, path: str) -> str:
        """Return what is asked for; raises Refused."""

    def read_tuples(self, body: bytes | bytearray) -> list[Spelled]:
        """Read the body of an insert or delete; raises InvalidInput, or Refused."""

    def read_query(self, text: str) -> wire.SelectParameters:
        """Read the query of a select; raises InvalidInput."""

    def read_keys(
        self, body: bytes | bytearray, query: wire.SelectParameters, max_size: int
    ) -> list[bytes]:
        """Read which keys are asked for; raises InvalidInput, or Refused."""


class Service:
    """Answers requests out of a farm; a Handler of HTTP."""

    def __init__(
        self, farm: AsyncFarm, metrics: ServerMetrics, tokens: Tokens, *, lenient: bool = False
    ) -> None:
        self._farm = farm
        self._reading: RequestReading = roshis if lenient else wire
        self._metrics = metrics
        self._tokens = tokens
        self._admitted = {
            known: {action: Admitted((action, known), known) for action in _SCOPES}
            for known in (True, False)
        }
        self._writes: dict[str, Batcher[Spelled, Written]] = {
            verb: Batcher(partial(farm.write, verb)) for verb in _WRITES
        }
        self._selects: dict[Window, Batcher[bytes, Answer]] = {}
        # Scrapes of one moment ask the instances once.
        self._status: Batcher[None, list[InstanceStatus]] = Batcher(lambda _: farm.status())
        self._background = Background()

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""
        return self._tokens.required

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers that it looks at, by which it knows requests of pages."""
        return LOOKED_AT

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head: its route and its token; raises Refused."""
        action = self._reading.route(method, path)
        known = authorize(self._tokens, authorization, _SCOPES[action]) is not None
        return self._admitted[known][action]

    def handle(self, request: Request, answer: Answered) -> None:
        """Answer a request that was admitted, at once or later."""
        action, known = request.action
        try:
            if not self.needs_token:
                check_local(request.headers, None)
            if action in _WRITES:
                self._write(action, request, answer)
            elif action == "select":
                self._select(request, answer)
            elif action == "metrics":
                self._status.add(BatchPart((None,), partial(self._show_metrics, answer)))
            else:
                self._background.start(self._answer_health(answer, known=known))
        except Refused as refused:
            answer(self.refuse(refused))
        except InvalidInput as error:
            answer(wire.failed(400, str(error)))

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to a request that is refused."""
        headers = f"Allow: {refused.allow}\r\n".encode() if refused.allow else b""
        if refused.status == 401:
            headers += b"WWW-Authenticate: Bearer\r\n"
        elif refused.status == 503:
            headers += b"Retry-After: 1\r\n"
        return wire.failed(refused.status, str(refused), headers, close=refused.close)

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered, whether or not its client is still there."""
        self._metrics.count_request(reply.status)

    def _write(self, verb: str, request: Request, answer: Answered) -> None:
        began = time.perf_counter()
        tuples = self._reading.read_tuples(request.body)

        def done(result: Written | Exception, _at: int) -> None:
            if isinstance(result, Exception):
                answer(self._failed(result))
            else:
                answer(wire.written(_WRITES[verb], len(tuples), time.perf_counter() - began))

        self._writes[verb].add(BatchPart(tuples, done))

    def _select(self, request: Request, answer: Answered) -> None:
        began = time.perf_counter()
        query = self._reading.read_query(request.query)
        keys = self._reading.read_keys(request.body, query, self._farm.max_size)
        if query.limit < 1:
            answer(wire.selected(query, keys, Answer.empty(), time.perf_counter() - began))
            return

        def done(result: Answer | Exception, _at: int) -> None:
            if isinstance(result, Exception):
                answer(self._failed(result))
            else:
                answer(wire.selected(query, keys, result, time.perf_counter() - began))

        batcher = self._selects.get(query.window)
        if batcher is None:
            self._forget_idle()
            batcher = Batcher(partial(self._farm.read, window=query.window))
            self._selects[query.window] = batcher
        batcher.add(BatchPart(keys, done))

    def _forget_idle(self) -> None:
        """Drop the batchers of windows that nobody asks for any more."""
        if len(self._selects) > 100:
            self._selects = {w: g for w, g in self._selects.items() if not g.idle}

    def _show_metrics(
        self, answer: Answered, found: list[InstanceStatus] | Exception, _at: int
    ) -> None:
        """Answer with the metrics; what was counted is shown whether or not instances answer."""
        instances = [] if isinstance(found, Exception) else found
        answer(Reply(200, self._metrics.text(instances).encode(), CONTENT_TYPE))

    async def _answer_health(self, answer: Answered, *, known: bool) -> None:
        """Answer whether instances serve; the server is healthy as long as one of them does.

        Only clients that are ``known`` learn which instances there are.
        """
        try:
            found = await self._farm.status()
            serving = sum(instance.up for instance in found)
            status = "ok" if serving == len(found) else "degraded" if serving else "down"
            facts: dict[str, Any] = {"status": status}
            if known:
                facts["instances"] = [
                    {"cluster": one.cluster, "instance": one.instance, "up": one.up}
                    for one in found
                ]
            answer(wire.document(200 if serving else 503, facts))
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            answer(self._failed(error))

    def _failed(self, error: Exception) -> Reply:
        """Return the reply to a failure; one that nobody foresaw is shown in the log only."""
        if isinstance(error, HeadwaterError):
            return wire.failed(500, str(error))
        return self.refuse(own_fault(error))
