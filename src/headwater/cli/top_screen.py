"""The screen of ``headwater top``: samples the store, draws what is known, and answers to keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.text import Text

from headwater.aio_client import connect
from headwater.cli import output
from headwater.cli.top_standing import list_picture, queue_picture
from headwater.cli.top_view import (
    TopPicture,
    overview_picture,
    place_kept,
    ruler_picture,
    spark_text,
)
from headwater.errors import StoreError
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import group_ruler
from headwater.metrics.alarm_watch import AlarmWatch, FirstSeen
from headwater.metrics.alarms import StoreFacts
from headwater.metrics.history import (
    STORE,
    CachedHistory,
    HistoryRecorder,
    Point,
    RateBook,
    check_history,
)
from headwater.metrics.sweeps import StoreWatch, StreamRates
from headwater.serve.api.databases import open_database
from headwater.serve.console.pages.lagging import every_reader, gathered
from headwater.serve.console.ruler import draw, registered_reader, spark_reads, window_of
from headwater.store.many import together
from headwater.views.overview import look_apart

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headwater.aio_client import AsyncHeadwater
    from headwater.metrics.sweeps import StoreSample
    from headwater.serve.console.pages.lagging import Lagging

_EVERY_S: Final = 1.0
# A store that has not answered by then is said to be away.
_PATIENCE_S: Final = 3.0
_SPARKS: Final = 40
_SPARK_SPAN_S: Final = 120
# Groups that a ruler has rows for, and the cells that are asked for.
_ROWS: Final = 30
_CELLS: Final = 200
_UP: Final = (b"k", b"\x1b[A", b"\x1bOA")
_DOWN: Final = (b"j", b"\x1b[B", b"\x1bOB")
_ENTER: Final = (b"\r", b"\n", b"l", b"\x1b[C")
_BACK: Final = (b"\x1b", b"h", b"\x7f", b"\x1b[D")
_LEAVE: Final = (b"q", b"\x03", b"\x04")


class TopScreen:
    """What ``headwater top`` shows, and the row that is chosen."""

    def __init__(self, url: str | None, history: int, db: str | None = None) -> None:
        self._url = url
        self._db = db
        self._history = check_history(history)
        self._rates = RateBook()
        self._store_point = Point()
        self._sample: StoreSample | None = None
        self._rows: list[Lagging] = []
        self._chosen = 0
        self._moved = False
        self._entered = False
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(self, *, live: bool) -> None:
        """Show the store until somebody leaves, or once."""
        async with connect(self._url, wait_ms=0) as hw, contextlib.AsyncExitStack() as opened:
            self._hw: AsyncHeadwater = hw
            self._watch = StoreWatch(hw)
            self._stream_rates = StreamRates(self._watch)
            self._past = CachedHistory(hw)
            self._facts = StoreFacts(self._watch, self._url)
            opened.push_async_callback(self._watch.close)
            opened.push_async_callback(self._facts.close)
            outbox = None
            if self._db is not None:
                database = opened.enter_context(open_database(self._db, self._url))
                outbox = database.status
            seen = FirstSeen(hw, writes=False)
            self._alarms = AlarmWatch(self._watch, self._facts, seen, outbox=outbox)
            opened.push_async_callback(self._alarms.close)
            if not live:
                self._facts.report()
                await self._watch.sample_now()
                await self._facts.close()
                output.console().print(await self._overview(chosen=False), highlight=False)
                return
            if self._history:
                recorder = HistoryRecorder(self._watch, self._history)
                await opened.enter_async_context(recorder.recording())
            await self._show()

    async def _show(self) -> None:

        console = output.console()
        with (
            _single_keys(self._keys.put_nowait),
            Live(console=console, screen=True, auto_refresh=False) as shown,
        ):
            while True:
                shown.update(await self._drawn(), refresh=True)
                try:
                    async with asyncio.timeout(_EVERY_S):
                        key = await self._keys.get()
                except TimeoutError:
                    continue
                if key in _LEAVE:
                    return
                self._press(key)

    def _press(self, key: bytes) -> None:
        self._moved = self._moved or key in (*_UP, *_DOWN, *_ENTER)
        if key in _UP and not self._entered:
            self._chosen = max(self._chosen - 1, 0)
        elif key in _DOWN and not self._entered:
            self._chosen = min(self._chosen + 1, max(len(self._rows) - 1, 0))
        elif key in _ENTER:
            self._entered = bool(self._rows)
        elif key in _BACK:
            self._entered = False

    def _take_rows(self, rows: list[Lagging]) -> None:
        """Take new rows; before somebody moves, the worst of them is chosen."""
        self._chosen = place_kept(self._rows, self._chosen, rows) if self._moved else 0
        self._rows = rows

    async def _drawn(self) -> RenderableType:
        """Return the picture, or that the store is away: then it is tried again."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._picture()
        except (StoreError, TimeoutError) as error:
            why = output.readable(error) if str(error) else "silent"
            return Text(f"{self._hw.store.where} does not answer ({why}); trying again · q leave")

    async def _picture(self) -> RenderableType:
        if not self._entered:
            return await self._overview(chosen=True)
        row = self._rows[min(self._chosen, len(self._rows) - 1)]
        if row.kind == "queue":
            return queue_picture(await self._hw.queue(row.name).stats())
        if row.where:
            return await self._ruler(row.where[0])
        return list_picture(row)

    async def _overview(self, *, chosen: bool) -> RenderableType:

        sample = await self._watch.whole(_EVERY_S)
        if sample is not self._sample:
            self._sample = sample
            self._store_point = self._rates.points(sample, None)[STORE]
            self._take_rows(every_reader(sample))
        self._chosen = min(self._chosen, max(len(self._rows) - 1, 0))
        wanted = [row.series for row in self._rows[:_SPARKS]]
        past = await self._past.points([STORE, *wanted], 1, _SPARK_SPAN_S)
        # One look knows no rates, but another process may have kept them.
        kept = None if chosen else past.series[STORE][-1] or past.series[STORE][-2]
        point = self._store_point if kept is None else kept
        sparks = {
            one: spark_text([None if at is None else at.lag for at in past.series[one]])
            for one in wanted
        }
        console = output.console()
        picture = TopPicture(
            self._hw.store.where,
            sample,
            point,
            gathered(await self._alarms.found(sample, once=not chosen)),
            self._rows,
            sparks,
            self._chosen if chosen else None,
            self._watch.clock() - sample.at,
            await self._facts.past_checks(),
            self._facts.report(),
        )
        return overview_picture(picture, console.width, console.height if chosen else 1000)

    async def _ruler(self, stream: str) -> RenderableType:

        run = self._hw.store.run
        _, (info,), groups, _ = await run(look_apart([stream]))
        window = window_of(info, None, None)
        handles = [
            GroupHandle(StreamHandle(stream, set()), row.group.name, "top")
            for row in groups[:_ROWS]
        ]
        rulers = await run(
            together(group_ruler(one, window.first, window.last, _CELLS) for one in handles)
        )
        found = [(row.group, ruler) for row, ruler in zip(groups, rulers, strict=False) if ruler]
        readers = [
            registered_reader(name, at, info.reader_lag_ms[name])
            for name, at in sorted(info.readers.items())
        ]
        sample = self._watch.latest
        readers += [one for query in sample.queries for one in spark_reads(query, stream)]
        picture = draw(info, window, found, readers[:_ROWS], sample.now_ms)
        # Also while a stream is shown, the sample is renewed: its rate comes from it.
        rate = self._stream_rates.of(stream)
        return ruler_picture(info, rate, picture, output.console().width)


@contextlib.contextmanager
def _single_keys(take: Callable[[bytes], None]) -> Iterator[None]:
    """Have each key given to a function as it is pressed, in the running event loop."""
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def ready() -> None:
        pressed = os.read(fd, 64)
        # The end of the input is the end of the work; a key with a sequence is one key.
        for key in [pressed] if pressed.startswith(b"\x1b") else [bytes([one]) for one in pressed]:
            take(key)
        if not pressed:
            take(_LEAVE[-1])

    tty.setcbreak(fd)
    loop.add_reader(fd, ready)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
