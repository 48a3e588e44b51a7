"""What the server answers to a request: who may ask, what is asked, and what the farm says."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.timeline.cluster.calls import Window
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.background import Background
from headwater.timeline.farm.reading import Answer
from headwater.timeline.records import Spelled, Written
from headwater.timeline.server import wire
from headwater.timeline.server.batching import Gathering, Wish
from headwater.timeline.server.http import Head, Refused, Reply, Request
from headwater.timeline.server.prometheus import CONTENT_TYPE, Figures

log = logging.getLogger("headwater.timeline")

Tell: TypeAlias = Callable[[Reply], None]

_ROUTES: Final = {
    "/": {"GET": "select", "POST": "insert", "DELETE": "delete"},
    "/select": {"POST": "select"},
    "/metrics": {"GET": "metrics"},
    "/health": {"GET": "health"},
}
_WRITES: Final = {"insert": "inserted", "delete": "deleted"}


class Tokens:
    """Who may ask: everybody when there are no tokens, else whoever carries one of them.

    ``read_token`` allows selects and figures only. How alive the server is may be asked by all.
    """

    def __init__(self, token: str | None, read_token: str | None) -> None:
        if read_token and not token:
            raise InvalidInput("a read token alone leaves writing to nobody; give a token too")
        self.needed = token is not None
        self._all = _digest(token)
        self._read = _digest(read_token)

    def check(self, action: str, authorization: str) -> None:
        """Let a request pass, or raise Refused."""
        if not self.needed or action == "health":
            return
        scheme, _, shown = authorization.partition(" ")
        seen = _digest(shown.strip() if scheme.lower() == "bearer" else None)
        if self._is(seen, self._all):
            return
        if not self._is(seen, self._read):
            raise Refused(401, "this needs a token; send it as Authorization: Bearer ...")
        if action in _WRITES:
            raise Refused(403, "this token allows reading only; send one that allows writing")

    @staticmethod
    def _is(seen: bytes | None, known: bytes | None) -> bool:
        return seen is not None and known is not None and hmac.compare_digest(seen, known)


def _digest(token: str | None) -> bytes | None:
    return hashlib.sha256(token.encode()).digest() if token else None


class Service:
    """Answers requests out of a farm."""

    def __init__(self, farm: AsyncFarm, figures: Figures, tokens: Tokens) -> None:
        self._farm = farm
        self._figures = figures
        self._tokens = tokens
        self._writes: dict[str, Gathering[Spelled, Written]] = {
            verb: Gathering(partial(farm.write, verb)) for verb in _WRITES
        }
        self._selects: dict[Window, Gathering[bytes, Answer]] = {}
        self._background = Background()

    def handle(self, request: Request, answer: Tell) -> None:
        """Answer a request, at once or later."""
        try:
            action = _route(request.head)
            self._tokens.check(action, request.head.authorization)
            if action in _WRITES:
                self._write(action, request, answer)
            elif action == "select":
                self._select(request, answer)
            elif action == "metrics":
                answer(Reply(200, self._figures.text().encode(), CONTENT_TYPE))
            else:
                self._background.start(self._tell_health(answer))
        except Refused as refused:
            answer(self.refuse(refused))
        except InvalidInput as error:
            answer(wire.failed(400, str(error)))

    def refuse(self, refused: Refused) -> Reply:
        """Spell a refusal."""
        headers = f"Allow: {refused.allow}\r\n" if refused.allow else ""
        if refused.status == 401:
            headers += "WWW-Authenticate: Bearer\r\n"
        return wire.failed(refused.status, str(refused), headers)

    def count(self, reply: Reply) -> None:
        """Count a request that is answered, whether or not its client is still there."""
        self._figures.request(reply.status)

    def _write(self, verb: str, request: Request, answer: Tell) -> None:
        began = time.perf_counter()
        tuples = wire.read_tuples(request.body)

        def done(result: Written | Exception) -> None:
            if isinstance(result, Exception):
                answer(_failed(result))
            else:
                answer(wire.written(_WRITES[verb], len(tuples), time.perf_counter() - began))

        self._writes[verb].add(Wish(tuples, done))

    def _select(self, request: Request, answer: Tell) -> None:
        began = time.perf_counter()
        query = wire.read_query(request.head.query)
        keys = wire.read_keys(request.body, query)

        def done(result: Answer | Exception) -> None:
            if isinstance(result, Exception):
                answer(_failed(result))
            else:
                answer(wire.selected(query, keys, result, time.perf_counter() - began))

        gathering = self._selects.get(query.window)
        if gathering is None:
            self._forget_idle()
            gathering = Gathering(partial(self._farm.read, window=query.window))
            self._selects[query.window] = gathering
        gathering.add(Wish(keys, done))

    def _forget_idle(self) -> None:
        """Keep windows that nobody asks for any more from piling up."""
        if len(self._selects) > 100:
            self._selects = {w: g for w, g in self._selects.items() if not g.idle}

    async def _tell_health(self, answer: Tell) -> None:
        """Say which instances serve; the server is of use as long as one of them does."""
        found = await self._farm.status()
        serving = sum(instance.up for instance in found)
        status = "ok" if serving == len(found) else "degraded" if serving else "down"
        facts = [{"cluster": one.cluster, "instance": one.instance, "up": one.up} for one in found]
        answer(wire.document(200 if serving else 503, {"status": status, "instances": facts}))


def _failed(error: Exception) -> Reply:
    """Spell a failure; what nobody foresaw is told to who runs the server, not to who asks."""
    if isinstance(error, HeadwaterError):
        return wire.failed(500, str(error))
    log.error("a request failed", exc_info=error)
    return wire.failed(500, "the server failed by a fault of its own; its log says more")


def _route(head: Head) -> str:
    methods = _ROUTES.get(head.path)
    if methods is None:
        raise Refused(404, f"there is no {head.path} here; there are {', '.join(_ROUTES)}")
    action = methods.get("GET" if head.method == "HEAD" else head.method)
    if action is None:
        allow = ", ".join(methods)
        raise Refused(405, f"{head.path} takes {allow}, not {head.method}", allow)
    return action
