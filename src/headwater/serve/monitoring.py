"""A port for those who watch a process that serves nothing else: metrics, and whether it works.

    with monitored(parse_address("127.0.0.1:6309")) as url:
        worker.run()

``/metrics`` returns the counts of this process for Prometheus and what ``parts`` add to the page,
``/healthz`` that the process lives, ``/readyz`` whether it can do its work. Workers, streamers, the
housekeeper and applications use it; a server of HTTP has these paths on its own port. A thread of
its own answers, so that a handler that blocks does not block requests.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from headwater.aio_client import connect
from headwater.errors import HeadwaterError
from headwater.kernel.declaring import Scope
from headwater.kernel.instrument import also_installed
from headwater.kernel.packaging import __version__
from headwater.metrics.exposition import CONTENT_TYPE, Page, label_text
from headwater.metrics.operations import OperationMetrics
from headwater.serve.http.authorization import LOOKED_AT, authorize, check_local
from headwater.serve.http.connection import serve_http
from headwater.serve.http.messages import Admitted, Refused, Reply, Request, StreamedReply
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ListenAddress, ServerProcess, url_of
from headwater.serve.readiness import NOT_READY, READY_S, store_missing
from headwater.serve.tokens import Tokens

log = logging.getLogger("headwater.serve")

# Returns why the process cannot do its work at present, or None when it can.
Ready: TypeAlias = "Callable[[], Awaitable[str | None]]"
# Returns the memory in which other processes count, or None without any.
OtherCounts: TypeAlias = "Callable[[], memoryview[int] | None]"
# Adds metrics to a page; may take a while, and may raise HeadwaterError.
AddMetrics: TypeAlias = "Callable[[Page], None]"

METRICS: Final = "/metrics"
HEALTH: Final = "/healthz"
READINESS: Final = "/readyz"
# A page this young is returned to another scrape as it is.
_FRESH_S: Final = 1.0
_LIMITS: Final = HttpLimits(
    max_connections=64, max_anonymous=32, max_buffered=1 << 20, max_body=1024, drain_ms=1000
)
_TEXT: Final = "text/plain; charset=utf-8"


def no_others() -> None:
    """Return that no other process counts."""


async def always_ready() -> None:
    """Return that nothing is missing: the process works as long as it lives."""


def store_ready(url: str | None) -> Ready:
    """Return what tells whether the store at a URL can be used, by a connection of its own."""

    async def ready() -> str | None:
        try:
            async with connect(url, wait_ms=0) as hw:
                return await store_missing(hw)
        except HeadwaterError as error:
            return f"the store cannot be reached: {error}"

    return ready


@contextmanager
def monitored(
    address: ListenAddress,
    tokens: Tokens | None = None,
    *,
    operations: OperationMetrics | None = None,
    others: OtherCounts = no_others,
    parts: Sequence[AddMetrics] = (),
    ready: Ready = always_ready,
) -> Iterator[str]:
    """Answer at an address while the block runs; yields its URL.

    All operations of this process are counted meanwhile, in ``operations`` if given; an instrument
    that is installed is still reported to. The counts of ``others`` are added to those of this
    process, so that each series is shown once. ``parts`` are called in a thread, ``ready`` in the
    event loop of another one. Metrics need a token to read where there are tokens. Raises
    InvalidInput for an address that is wider than the loopback without a token, or that is taken.
    """
    known = Tokens() if tokens is None else tokens
    address.check(known)
    counts = OperationMetrics() if operations is None else operations
    bound = address.bind()
    loop, stop, listens = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    monitor = _Monitor(known, counts, others, parts, ready)
    process = ServerProcess(0, bound, stop, listens.set)
    thread = threading.Thread(
        target=_answer, args=(loop, process, monitor), name="headwater-monitoring", daemon=True
    )
    thread.start()
    listens.wait()
    try:
        with also_installed(counts):
            yield url_of(bound, "http")
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def _answer(loop: asyncio.AbstractEventLoop, process: ServerProcess, monitor: _Monitor) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            runner.run(serve_http(process, monitor, _LIMITS))
        finally:
            process.ready()


class _Monitor:
    """Answers those who watch; a Handler of HTTP."""

    def __init__(
        self,
        tokens: Tokens,
        counts: OperationMetrics,
        others: OtherCounts,
        parts: Sequence[AddMetrics],
        ready: Ready,
    ) -> None:
        self._tokens = tokens
        self._counts = counts
        self._others = others
        self._parts = parts
        self._ready = ready
        self._page = b""
        self._made_at = -float("inf")
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""
        return self._tokens.required

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers that it looks at, by which it knows requests of pages."""
        return LOOKED_AT

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head; raises Refused."""
        if path not in (METRICS, HEALTH, READINESS):
            raise Refused(404, f"there is nothing but {METRICS}, {HEALTH} and {READINESS}")
        if method not in ("GET", "HEAD"):
            raise Refused(405, "this is only read", "GET, HEAD")
        needed = Scope.READ if path == METRICS else None
        grant = authorize(self._tokens, authorization, needed)
        return Admitted((path, grant is not None), known=grant is not None)

    def handle(self, request: Request, answer: Callable[[Reply | StreamedReply], None]) -> None:
        """Answer a request that was admitted, later."""

        async def work() -> None:
            try:
                if not self.needs_token:
                    check_local(request.headers, None)
                answer(await self._reply(*request.action))
            except Refused as refused:
                answer(self.refuse(refused))
            except Exception:  # the client waits for an answer, whatever it is
                log.exception("%s could not be answered", request.path)
                answer(self.refuse(Refused(500, "this failed; the log of the process says why")))

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reply(self, path: str, known: bool) -> Reply:
        if path == METRICS:
            return Reply(200, await self._metrics(), CONTENT_TYPE)
        missing = None if path == HEALTH else await self._missing()
        if missing is None:
            return Reply(200, b"ok\n", _TEXT)
        return Reply(503, f"{missing if known else NOT_READY}\n".encode(), _TEXT)

    async def _missing(self) -> str | None:
        try:
            async with asyncio.timeout(READY_S):
                return await self._ready()
        except TimeoutError:
            return f"this could not be found out within {READY_S:.0f} seconds"

    async def _metrics(self) -> bytes:
        async with self._lock:
            if time.monotonic() - self._made_at > _FRESH_S:
                self._page = await asyncio.to_thread(self._new_page)
                self._made_at = time.monotonic()
            return self._page

    def _new_page(self) -> bytes:
        page = Page()
        self._counts.add_to(page, self._others())
        page.add(label_text(version=__version__), build_info=1)
        for add in self._parts:
            try:
                add(page)
            except HeadwaterError as error:
                log.warning("a part of the metrics is left out: %s", error)
        return page.text().encode()

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""
        text = f"{refused}\n".encode()
        return Reply(refused.status, text, _TEXT, refused.headers, refused.close)

    def count(self, reply: Any) -> None:
        """Do nothing: those who watch are not what is watched."""
