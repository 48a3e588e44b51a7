"""An application declares its parts, and runs them together: workers, consumers, outbox, keep."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

import headwater
from headwater import App, Delivery, Message, Queue, TopicMessage, testing
from headwater.app.application import load_app
from headwater.errors import AppRefused, InvalidInput
from headwater.outbox import Outbox
from tests.support import commands
from tests.support.apps import PARTS, NotingApp, RunningProgram
from tests.support.commands import PROGRAM, run
from tests.support.processes import is_alive
from tests.support.servers import until
from tests.support.stores import Stores


@dataclass
class Order:
    number: int


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def hw(url: str) -> Iterator[headwater.Headwater]:
    with headwater.connect(url) as connected:
        yield connected


@pytest.fixture
def db(tmp_path: Path) -> str:
    path = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(path)
    Outbox(engine).create_all()
    with engine.begin() as conn:
        conn.execute(text("CREATE TABLE seen (number INTEGER)"))
    engine.dispose()
    return path


def test_every_kind_of_part_runs_sync_and_async(
    url: str, hw: headwater.Headwater, db: str, name: str
) -> None:
    app = App(url, db)
    seen: Counter[str] = Counter()

    @app.worker(stream=name, group="mail", codec=Order, max_attempts=5)
    def send_mail(message: Message[Order]) -> None:
        seen[f"stream {message.data.number}"] += 1

    @app.worker(stream=name, group="mail-async", codec=Order, concurrency=8)
    async def send_later(message: Message[Order]) -> None:
        await asyncio.sleep(0)
        seen[f"async stream {message.data.number}"] += 1

    @app.worker(topic=f"{name}-t", group="g", partitions=2, codec="json", ordered=True)
    def on_topic(message: TopicMessage[Any]) -> None:
        seen[f"topic {message.data}"] += 1

    @app.worker(topic=f"{name}-t", group="h", partitions=2, codec="json")
    async def on_topic_async(message: TopicMessage[Any]) -> None:
        seen[f"async topic {message.data}"] += 1

    @app.worker(queue=name, backoff="fixed", ack_ms="30s", timeout="30s")
    def shrink(job: Delivery) -> None:
        seen[f"queue {job.value.decode()}"] += 1

    @app.worker(queue=f"{name}-a", backoff="none")
    async def shrink_async(job: Delivery) -> None:
        seen[f"async queue {job.value.decode()}"] += 1

    @app.consumer(f"{name}-read", stream=name, codec=Order)
    def project(conn: Any, messages: list[Message[Order]]) -> None:
        rows = [{"n": message.data.number} for message in messages]
        conn.execute(text("INSERT INTO seen VALUES (:n)"), rows)

    @app.consumer(f"{name}-count", stream=name, codec=Order)
    async def project_async(conn: Any, messages: list[Message[Order]]) -> None:
        rows = [{"n": -message.data.number} for message in messages]
        await conn.execute(text("INSERT INTO seen VALUES (:n)"), rows)

    app.stream_outbox()
    app.keep(every="10ms")

    engine = create_engine(db)
    with engine.begin() as conn:
        Outbox(engine).stage(conn, name, "a", {"number": 1})
    hw.stream(name, codec=Order).write("b", Order(2))
    hw.topic(f"{name}-t", 2, codec="json").write_many([("a", 1), ("b", 2)])
    for queue in (name, f"{name}-a"):
        hw.queue(queue).push_many([b"1", b"2"])
    expected = {f"{way}{what} {n}" for way in ("", "async ") for n in (1, 2)
                for what in ("stream", "topic", "queue")}  # fmt: skip

    def numbers() -> list[int]:
        with engine.connect() as conn:
            return sorted(conn.execute(text("SELECT number FROM seen")).scalars())

    app.start()
    try:
        until(lambda: set(seen) == expected and numbers() == [-2, -1, 1, 2])
        until(lambda: {state.status for state in app.states()} == {"running"})
        until(lambda: all(state.counts.done for state in app.states()))
    finally:
        assert app.stop() == 0
    engine.dispose()
    assert set(seen.values()) == {1}
    assert app.states() == []
    # A decorated function is what it was.
    assert send_mail.__name__ == "send_mail"
    assert asyncio.iscoroutinefunction(shrink_async)


def test_what_is_wrong_is_listed_as_a_whole_before_anything_runs(
    url: str, hw: headwater.Headwater, tmp_path: Path, name: str
) -> None:
    hw.queue(f"{name}-q").push(b"x")
    ran = threading.Event()
    app = App(url, f"sqlite:///{tmp_path / 'none.db'}")

    @app.worker(stream=name, group="g")
    def good(_: Message) -> None:
        ran.set()

    hw.stream(name).write("t", b"v")
    app.worker(stream="a b", group="c d", codec=("x", "y"), name="names")(lambda _: None)  # type: ignore[arg-type]
    app.worker(stream=f"{name}-q", group="g", name="other-kind")(lambda _: None)
    app.worker(queue=f"{name}-q", concurrency=0, name="numbers")(lambda _: None)
    app.worker(queue=f"{name}-q", name="takes-two")(lambda _, __: None)  # type: ignore[arg-type, misc]
    app.worker(queue=f"{name}-p", name="not-there")(lambda _: None)
    app.stream_outbox()

    found = [str(fault) for fault in app.check() if fault.fatal]
    with pytest.raises(AppRefused) as refused:
        app.run()
    assert not ran.is_set()
    assert list(refused.value.faults) == found
    for part, words in (
        ("db", "there is no such file"),
        ("names", "the name of a stream must not contain ' '"),
        ("names", "the name of a group must not contain ' '"),
        ("names", "a codec of functions is a pair"),
        ("other-kind", f"is a queue, not a stream; write queue='{name}-q'"),
        ("numbers", "concurrency must be from 1"),
        ("takes-two", "must take one argument"),
    ):
        assert any(one.startswith(f"{part}: ") and words in one for one in found), (part, found)
    notes = [fault for fault in app.check() if not fault.fatal]
    assert [note.part for note in notes] == ["not-there"]
    assert f"did you mean '{name}-q'?" in notes[0].what


def test_a_check_changes_nothing(url: str, hw: headwater.Headwater, name: str) -> None:
    app = App(url)
    app.worker(topic=f"{name}-t", group="g", name="topic")(lambda _: None)
    app.worker(stream=name, group="g", max_attempts=3, name="stream")(lambda _: None)
    app.worker(queue=name, name="queue")(lambda _: None)
    assert not [fault for fault in app.check() if fault.fatal]
    assert name not in (*hw.streams(), *hw.queues())
    assert f"{name}-t" not in hw.topics()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({}, "one source"),
        ({"stream": "a", "queue": "b", "group": "g"}, "one source"),
        ({"stream": "a"}, "give group="),
        ({"queue": "a", "group": "g"}, "no groups"),
        ({"queue": "a", "partitions": 2}, "only a topic"),
        ({"queue": "a", "concurency": 2}, "did you mean 'concurrency'"),
        ({"queue": "a", "expire_ms": 2}, "expire_ms"),
        ({"queue": "a", "processes": 0}, "processes must be from 1"),
        ({"queue": "a", "ack_ms": "soon"}, "ack_ms: 'soon' is not a span of time"),
        ({"queue": "a", "timeout": "soon"}, "timeout: 'soon' is not a span of time"),
        ({"queue": "a", "backoff": "often"}, "backoff: 'often' is not a span of time"),
    ],
)
def test_a_declaration_that_cannot_be_meant_is_refused_where_it_is_written(
    words: dict[str, Any], error: str
) -> None:
    with pytest.raises((InvalidInput, TypeError), match=error):
        App().worker(**words)(print)


def test_two_parts_need_two_names() -> None:
    app = App()
    app.keep()
    with pytest.raises(InvalidInput, match="has a part 'keep' already"):
        app.keep()
    app.keep(name="keep-2")
    assert list(app.parts) == ["keep", "keep-2"]


def test_parts_are_chosen_by_name(url: str, name: str) -> None:
    app = App(url)
    for part in "abc":
        app.worker(queue=name, name=part)(lambda _: None)
    app.start(only=["a", "b"], without=["b"])
    try:
        assert [state.name for state in app.states()] == ["a"]
        with pytest.raises(InvalidInput, match="runs already"):
            app.start()
    finally:
        app.stop()
    with pytest.raises(InvalidInput, match="no part 'd'; it has a, b, c"):
        app.check(only=["d"])


def test_a_part_that_dies_is_started_again_and_its_counts_go_on(
    url: str, hw: headwater.Headwater, name: str
) -> None:
    app = App(url)
    seen: list[bytes] = []
    part = app.worker(queue=name, name="w", concurrency=1)
    part(lambda job: seen.append(job.value))
    opened, opens = app.parts["w"].open, iter(range(100))

    def dies_first(resources: Any) -> Any:
        if next(opens) == 0:
            raise LookupError("not yet")
        return opened(resources)

    app.parts["w"].open = dies_first  # type: ignore[method-assign]
    hw.queue(name).push(b"1")
    app.start()
    try:
        until(lambda: app.states()[0].status == "resting")
        assert app.states()[0].why == "LookupError: not yet"
        until(lambda: seen == [b"1"])
        state = until(lambda: next((s for s in app.states() if s.counts.done), None))
        assert (state.restarts, state.status, state.why) == (1, "running", None)
    finally:
        app.stop()


def test_what_is_not_done_at_the_end_of_a_drain_is_returned_at_once(
    url: str, hw: headwater.Headwater, name: str
) -> None:
    app, begun, release = App(url), threading.Semaphore(0), threading.Event()

    @app.worker(queue=name, concurrency=2, ack_ms="10m")
    def stuck(_: Delivery) -> None:
        begun.release()
        release.wait(60)

    @app.worker(queue=f"{name}-a", concurrency=2, ack_ms="10m")
    async def stuck_async(_: Delivery) -> None:
        begun.release()
        await asyncio.get_running_loop().create_future()

    @app.worker(stream=name, group="g", concurrency=2, ack_ms="10m")
    def stuck_in_group(_: Message) -> None:
        begun.release()
        release.wait(60)

    @app.worker(stream=f"{name}-o", group="g", concurrency=2, ack_ms="10m", ordered=True)
    def stuck_in_order(_: Message) -> None:
        begun.release()
        release.wait(60)

    queues = hw.queue(name), hw.queue(f"{name}-a")
    for queue in queues:
        queue.push_many([b"%d" % n for n in range(5)])
    hw.stream(name).write_many([("t", b"%d" % n) for n in range(5)])
    hw.stream(f"{name}-o").write_many([(f"t{n % 2}", b"%d" % n) for n in range(5)])
    app.start()
    for _ in range(8):
        assert begun.acquire(timeout=60)
    assert app.stop(drain=0) > 0
    try:
        for queue in queues:
            assert (queue.stats().ready, queue.stats().unacked) == (5, 0)
        again = hw.stream(name).group("g").read(10, ack_ms=1000)
        assert sorted(message.offset for message in again) == [1, 2, 3, 4, 5]
        assert {message.attempt for message in again} == {1}
        # Here the first of each tag can be had at once, and the others as these are done.
        group, had = hw.stream(f"{name}-o").group("g", ordered=True), list[int]()
        while in_order := group.read(10, ack_ms=60_000):
            had += [message.offset for message in in_order]
            group.ack(in_order)
        assert sorted(had) == [1, 2, 3, 4, 5]
    finally:
        release.set()


# An application inside another program: alone in the main thread, or in an event loop of yours.


class Inside:
    """An application with one handler of each kind; both wait until they are let go."""

    def __init__(self, url: str, name: str) -> None:
        self.app = App(url)
        self.begun: list[object] = []
        self.done: list[bytes] = []
        self._go = threading.Event()

        @self.app.worker(queue=name, ack_ms="10m")
        def in_thread(job: Delivery) -> None:
            self.begun.append(threading.current_thread())
            self._go.wait(60)
            self.done.append(job.value)

        @self.app.worker(queue=f"{name}-a", ack_ms="10m")
        async def in_loop(job: Delivery) -> None:
            self.begun.append(asyncio.get_running_loop())
            while not self._go.is_set():  # noqa: ASYNC110  threads let it go
                await asyncio.sleep(0)
            self.done.append(job.value)

    def go(self) -> None:
        self._go.set()

    def go_when_stopping(self) -> None:
        until(lambda: self.app.is_stopping)
        self.go()

    def loops(self) -> set[object]:
        return {one for one in self.begun if isinstance(one, asyncio.AbstractEventLoop)}


@pytest.fixture
def queues(stores: Stores, name: str) -> Iterator[tuple[Queue, Queue]]:
    with headwater.connect(stores.url("plain")) as hw:
        found = hw.queue(name), hw.queue(f"{name}-a")
        for queue in found:
            queue.push_many([b"1", b"2"])
        yield found


@pytest.fixture
def inside(stores: Stores, name: str) -> Iterator[Inside]:
    found = Inside(stores.url("plain"), name)
    yield found
    found.go()


def left(queues: tuple[Queue, Queue]) -> list[tuple[int, int]]:
    return [(queue.stats().ready, queue.stats().unacked) for queue in queues]


def test_in_a_lifespan_async_handlers_share_the_event_loop_of_the_program(
    inside: Inside, queues: tuple[Queue, Queue]
) -> None:
    async def program() -> None:
        async with inside.app.lifespan(object()):
            await asyncio.to_thread(until, lambda: len(inside.begun) == 4)
            assert inside.loops() == {asyncio.get_running_loop()}
            inside.go()

    asyncio.run(program())
    # What had begun was waited for.
    assert sorted(inside.done) == [b"1", b"1", b"2", b"2"]
    assert left(queues) == [(0, 0), (0, 0)]


def test_an_application_that_is_cancelled_returns_what_is_not_done(
    inside: Inside, queues: tuple[Queue, Queue]
) -> None:
    async def program() -> None:
        running = asyncio.create_task(inside.app.run_async(drain=0))
        await asyncio.to_thread(until, lambda: len(inside.begun) == 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(program())
    assert left(queues) == [(2, 0), (2, 0)]


def test_a_lifespan_does_not_begin_with_what_is_wrong(inside: Inside) -> None:
    inside.app.worker(queue="no name", name="wrong")(lambda _: None)

    async def program() -> None:
        async with inside.app.lifespan():
            raise AssertionError("it began")

    with pytest.raises(AppRefused, match="wrong: the name of a queue"):
        asyncio.run(program())
    assert inside.begun == []


def signalling(inside: Inside, *numbers: int) -> threading.Thread:
    """Send signals to this process once all handlers have begun, each after the one before."""

    def send() -> None:
        until(lambda: len(inside.begun) == 4)
        for number in numbers:
            os.kill(os.getpid(), number)
            # Two signals at once would be one.
            until(lambda: inside.app.is_stopping)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_signal_lets_handlers_end(inside: Inside, queues: tuple[Queue, Queue]) -> None:
    thread = signalling(inside, signal.SIGTERM)
    letting = threading.Thread(target=inside.go_when_stopping)
    letting.start()
    inside.app.run(drain="10m")
    thread.join()
    letting.join()
    assert sorted(inside.done) == [b"1", b"1", b"2", b"2"]
    assert left(queues) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_returns_what_is_not_done(
    inside: Inside, queues: tuple[Queue, Queue], number: int
) -> None:
    thread = signalling(inside, number, number)
    inside.app.run(drain="10m")
    thread.join()
    assert left(queues) == [(2, 0), (2, 0)]
    assert inside.done == []


def test_handlers_share_the_clients_of_their_process(
    stores: Stores, queues: tuple[Queue, Queue], name: str
) -> None:
    app = App(stores.url("plain"))
    used: list[object] = []

    @app.worker(queue=name)
    def in_thread(job: Delivery) -> None:
        app.hw.queue(f"{name}-next").push(job.value)
        used.append(app.hw)

    @app.worker(queue=f"{name}-a")
    async def in_loop(job: Delivery) -> None:
        await app.async_hw.queue(f"{name}-next").push(job.value)
        used.append(app.async_hw)

    for client in ("hw", "async_hw"):
        with pytest.raises(InvalidInput, match="does not run in this process"):
            getattr(app, client)
    app.start()
    until(lambda: len(used) == 4)
    app.stop()
    assert len({id(client) for client in used}) == 2
    assert left(queues) == [(0, 0), (0, 0)]
    with pytest.raises(InvalidInput, match="does not run in this process"):
        _ = app.hw

    with testing.store() as private:
        private.queue(name).push(b"1")
        private.queue(f"{name}-a").push(b"2")
        testing.drain(app, store=private.url).raise_errors()
        assert private.queue(f"{name}-next").stats().ready == 2
    with pytest.raises(InvalidInput, match="does not run in this process"):
        _ = app.hw


# Processes of an application that are replaced: because its files changed, or its memory grew.


REPLACED_MODULE = """
import os, threading
from pathlib import Path
import headwater
app = headwater.App()
hoard = []
@app.worker(queue="{queue}", name="{part}", timeout="4s", backoff="10ms")
def work(job):
    if job.value == b"stuck" and job.attempt == 1:
        Path("stuck").write_text(str(os.getpid()))
        threading.Event().wait()
    if job.value == b"hoard":
        hoard.append(b"x" * 300_000_000)
    with Path("notes").open("a") as notes:
        notes.write(f"{part} {{job.value.decode()}} {{os.getpid()}}\\n")
"""


class Shop:
    """A module that a test changes while it runs."""

    def __init__(self, folder: Path, url: str, queue: str) -> None:
        self.folder = folder
        self.url = url
        self.queue = queue

    def declare(self, part: str) -> None:
        (self.folder / "shop.py").write_text(REPLACED_MODULE.format(queue=self.queue, part=part))

    def notes(self) -> list[list[str]]:
        file = self.folder / "notes"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def handled(self, value: str) -> list[str]:
        """Push a message, and wait for the note of its handler."""
        with headwater.connect(self.url) as hw:
            hw.queue(self.queue).push(value)
        return next(iter(until(lambda: [note for note in self.notes() if note[1] == value], 60)))

    @contextmanager
    def running(self, *words: str) -> Iterator[None]:
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, "run", "shop:app", "--no-view", *words],
                env=os.environ | {"HEADWATER_URL": self.url, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def shop(stores: Stores, name: str, tmp_path: Path) -> Shop:
    return Shop(tmp_path, stores.url("plain"), name)


def test_a_changed_file_starts_the_application_again_and_a_wrong_one_is_waited_for(
    shop: Shop,
) -> None:
    shop.declare("first")
    with shop.running("--reload"):
        assert shop.handled("a")[0] == "first"
        (shop.folder / "shop.py").write_text("app = nothing")
        until(lambda: "NameError" in shop.log(), 60)
        shop.declare("second")
        assert shop.handled("b")[0] == "second"
    assert f"{shop.folder / 'shop.py'} changed: the application is started again" in shop.log()


def test_a_process_past_its_memory_or_with_a_stuck_handler_is_drained_and_replaced(
    shop: Shop,
) -> None:
    shop.declare("work")
    with shop.running("--max-memory", "250MB"):
        # A thread cannot be stopped: its message is retried, and its process has to go.
        assert shop.handled("stuck")[:2] == ["work", "stuck"]
        until(lambda: "has a handler of work that runs past its time" in shop.log(), 60)
        stuck = int((shop.folder / "stuck").read_text())
        until(lambda: not is_alive(stuck), 60)
        greedy = shop.handled("hoard")[2]
        until(lambda: " MB, and --max-memory allows 250 MB" in shop.log(), 60)
        values = (f"x{n}" for n in range(1000))
        until(lambda: shop.handled(next(values))[2] != greedy, 60)
    assert re.search(
        r"process 0 \(work\) uses [34]\d\d MB, and --max-memory allows 250 MB: it is drained",
        shop.log(),
    )
    assert "is started again in 0.5 s; raise --max-memory, or let its handlers" in shop.log()
    assert "was killed" not in shop.log()


def test_a_limit_that_a_fresh_process_exceeds_is_refused_with_one_that_would_do(shop: Shop) -> None:
    shop.declare("work")
    with (shop.folder / "shop.py").open("a") as module:
        module.write("hoard.append(b'x' * 200_000_000)")
    answer = subprocess.run(
        [PROGRAM, "run", "shop:app", "--no-view", "--max-memory", "100MB"],
        env=os.environ | {"HEADWATER_URL": shop.url},
        cwd=shop.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    assert re.search(
        r"^error: --max-memory: a process of this application uses 2\d\d MB before its first "
        r"message, and 100 MB are allowed; give room to work, as \d\d0MB$",
        answer.stderr,
        re.MULTILINE,
    )


# ── ``headwater run``: one command checks and runs all parts, in processes that it keeps alive ───


VALUES = [b"m%d" % n for n in range(20)]


class Running:
    """An application that runs for all tests of this module, with a port to watch it."""

    def __init__(self, app: NotingApp, program: RunningProgram) -> None:
        self.app = app
        self.program = program
        found = until(lambda: re.search(r"metrics on (http://[\d.:]+)/metrics", program.log()), 60)
        self.url = found[1]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def metric(self, name: str) -> int:
        found = re.search(rf"^{re.escape(name)} (\d+)$", self.get("/metrics")[1], re.MULTILINE)
        return int(found[1]) if found else 0

    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.program.log().splitlines() if line[0] == "{"]


@pytest.fixture(scope="module")
def running(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("app")
    app = NotingApp(stores.url("plain"), f"app-{folder.parent.name}-{folder.name}", folder)
    words = ("--workers", "2", "--log", "json", "--http", "127.0.0.1:0")
    app.write([*VALUES, b"fail"])
    with app.running(*words, NOTES_PROCESSES="1") as program:
        running = Running(app, program)
        until(lambda: app.done([*VALUES, b"fail"]), 60)
        yield running
        assert program.end() == 0


def test_all_parts_run_in_all_processes(running: Running) -> None:
    until(lambda: running.get("/readyz") == (200, "ok\n"), 60)
    assert running.get("/healthz") == (200, "ok\n")


def test_metrics_are_the_sum_of_all_processes(running: Running) -> None:
    total = len(VALUES) + 1
    for part in PARTS:
        until(lambda: running.metric(f'headwater_part_done_total{{part="{part}"}}') == total)  # noqa: B023
    until(lambda: running.get("/readyz")[0] == 200, 60)
    expected = {"keep": 1, "queue_async": 1, **dict.fromkeys(PARTS[:4], 2)}
    for part, processes in expected.items():
        assert running.metric(f'headwater_part_processes{{part="{part}"}}') == processes
    done = running.metric('headwater_operation_messages_total{op="worker.handle"}')
    assert done == total * len(PARTS)
    # Once for each sync part: of async ones, "fail" is a message like any other.
    assert running.metric('headwater_part_failed_total{part="queue_sync"}') == 1
    until(lambda: 'headwater_part_lag{part="queue_sync"} 0' in running.get("/metrics")[1])
    page = running.get("/metrics")[1].splitlines()
    series = [line.rpartition(" ")[0] for line in page if not line.startswith("#")]
    assert sorted(series) == sorted(set(series))


def test_log_lines_name_part_object_and_message(running: Running) -> None:
    name = running.app.name
    failed = next(r for r in running.records() if r.get("error") == "LookupError")
    own = next(r for r in running.records() if r["message"] == "about to fail")
    for record in (failed, own):
        assert record["attempt"] == 1
        assert record["part"] in PARTS
        assert record["object"].startswith(name)
        assert "id" in record or record["offset"] >= 1
    assert "as it was asked to" in failed["traceback"]


@pytest.mark.fault
def test_the_counts_of_a_process_stay_when_it_is_killed(running: Running) -> None:
    done = 'headwater_part_done_total{part="queue_async"}'
    # A process reports about once a second; what it did since then is not known.
    until(lambda: running.metric(done) == len(VALUES) + 1, 60)
    victim = next(note.process for note in running.app.notes() if note.part == "queue_async")
    os.kill(victim, signal.SIGKILL)
    metric = 'headwater_part_restarts_total{part="queue_async"}'
    until(lambda: running.metric(metric) == 1, 60)
    until(lambda: running.get("/readyz")[0] == 200, 60)
    assert running.metric(done) == len(VALUES) + 1
    assert not is_alive(victim)
    died = next(r for r in running.records() if "was killed" in r["message"])
    assert died["message"].startswith("process 2 (queue_async) was killed by signal 9 (SIGKILL)")


# ── Checks ───────────────────────────────────────────────────────────────────────────────────

MODULE = """
import headwater
app = headwater.App()
@app.worker(queue="good")
def good(job): open("ran", "w").close()
@app.worker(queue="bad name", concurrency=0)
def bad(job): ...
app.stream_outbox()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_DB", raising=False)
    return tmp_path


def test_what_is_wrong_is_listed_and_nothing_runs(stores: Stores, folder: Path) -> None:
    (folder / "shop.py").write_text(MODULE)
    url = stores.url("plain")
    found = run(url, "run", "shop:app", "--no-view")
    assert found.code == 2
    listed = [tuple(line.split(": ")[:2]) for line in found.err.splitlines()]
    assert [part for kind, part in listed if kind == "error"] == ["db", "bad", "bad"]
    assert [part for kind, part in listed if kind == "warning"] == ["good"]
    assert not (folder / "ran").exists()
    only = run(url, "run", "shop:app", "--check", "--only", "good")
    assert (only.code, only.out, only.err) == (
        0,
        "shop:app: all parts can run\n",
        "warning: good: the store has no queue 'good' yet; it is made by the first write\n",
    )


@pytest.mark.parametrize(
    ("target", "module", "words"),
    [
        ("nowhere_at_all:app", "", "there is no module 'nowhere_at_all'"),
        ("shop_a:jobs", "import headwater\napp = headwater.App()", "did you mean shop_a:app?"),
        ("shop_b:app", "import nothing_of_that_name", "ModuleNotFoundError"),
        ("a b:app", "", "is not a module and a name"),
        ("shop_c.py", "", "'shop_c.py' is a file; write shop_c:app"),
        ("shop_d.py:jobs", "", "'shop_d.py' is a file; write shop_d:jobs"),
        ("json.nowhere:app", "", "there is no module 'json.nowhere'"),
        ("textwrap.nowhere:app", "", "there is no module 'textwrap.nowhere'"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_a_fault_with_a_cure(
    folder: Path, monkeypatch: pytest.MonkeyPatch, target: str, module: str, words: str
) -> None:
    if module:
        (folder / f"{target.partition(':')[0]}.py").write_text(module)
    monkeypatch.syspath_prepend(folder)
    with pytest.raises(InvalidInput, match=re.escape(words)):
        load_app(target)


@pytest.mark.parametrize("size", ["512", "0", "49MB"])
def test_a_memory_limit_that_no_process_can_keep_is_refused(folder: Path, size: str) -> None:
    (folder / "shop_e.py").write_text("import headwater\napp = headwater.App()\napp.keep()")
    answer = run(None, "run", "shop_e:app", "--max-memory", size)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(
        f"error: Invalid value for '--max-memory': {size} is less than an idle process uses; "
        "give 50MB or more, with the unit, as 512MB"
    )


DYING = """
import os, signal
from pathlib import Path
import headwater
from headwater.app.part_kinds import KeeperPart

app = headwater.App()


@app.worker(queue="dying")
def handle(job):
    Path("handled").touch()


class Odd(KeeperPart):
    def check(self, resources):
        first = not Path("checked").exists()
        Path("checked").touch()
        if first:
            {act}
        return iter(())


app.add(Odd("odd", "10s"))
"""
DEATHS = {
    "os.kill(os.getpid(), signal.SIGKILL)": "was killed by signal 9 (SIGKILL)",
    "raise KeyError('surprise')": "ended with exit code 1",
    "os._exit(7)": "ended with exit code 7",
}


@pytest.mark.parametrize("act", DEATHS)
def test_a_process_that_dies_in_the_check_is_said_in_one_line_and_started_again(
    stores: Stores, folder: Path, name: str, act: str
) -> None:
    (folder / "shop_f.py").write_text(DYING.replace("{act}", act).replace("dying", name))
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        hw.queue(name).push(b"1")
    words = ("run", "shop_f:app", "--no-view")
    with commands.running(url, *words, cwd=folder) as process:
        until(lambda: (folder / "checked").exists() and (folder / "handled").exists())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    again = [line for line in said.splitlines() if "is started again in 0.5 s" in line]
    assert len(again) == 1
    assert DEATHS[act] in again[0]


@pytest.mark.parametrize("act", DEATHS)
def test_a_check_that_dies_is_a_fault(stores: Stores, folder: Path, act: str) -> None:
    (folder / "shop_g.py").write_text(DYING.replace("{act}", act))
    found = run(stores.url("plain"), "run", "shop_g:app", "--check")
    assert found.code == 2
    assert f"error: application: the process that checks it {DEATHS[act]}" in found.err
    assert "Traceback" not in found.err
