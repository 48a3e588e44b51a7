"""Rocket Rides: a run with faults ends with equal totals, and one that does not is found out."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
import uvicorn

import headwater
from examples.rocket_rides import model
from examples.rocket_rides.api import LONGEST_BODY, LONGEST_KEY, create_app
from examples.rocket_rides.faults import Fault
from headwater.outbox import Outbox, Streamer
from headwater.outbox.schema import outbox_table
from tests.support.pages import ROOT
from tests.support.postgres import Postgres
from tests.support.servers import until
from tests.support.stores import Stores


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start the example without Spark; what it leaves behind, it leaves in ``place``."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.rocket_rides", "--spark", "off", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for the socket of a server."""
    with tempfile.TemporaryDirectory(prefix="hw-rides-") as directory:
        yield Path(directory)


def assert_agreed(process: subprocess.Popen[str], place: Path) -> str:
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out + err
    lines = out.splitlines()
    assert re.fullmatch(r"all totals agree at offset [1-9]\d*", lines[-1])
    assert not list(place.iterdir()), "it removes what it made"
    return out


def struck(out: str) -> dict[str, int]:
    """How often each fault struck, as the run has told in the end."""
    rows = [line.strip() for line in out.splitlines()]
    return {
        fault: int(row.split()[0])
        for fault in Fault
        for row in rows
        if re.match(rf"\d+ +{re.escape(fault)}( |$)", row)
    }


@pytest.mark.fault
def test_all_totals_agree_after_a_run_with_every_kind_of_fault(place: Path) -> None:
    certain = {Fault.CRASH, Fault.KILL, Fault.RESTART, Fault.DOUBLE_POST}
    total: Counter[str] = Counter()
    # One batch in ten ends in a crash: where the machine is slow, few large batches may miss it.
    for seed in ("7", "8", "9"):
        out = assert_agreed(start(place, "--rides", "200", "--seconds", "6", "--seed", seed), place)
        counts = struck(out)
        assert set(counts) == set(Fault)
        for victim in ("api", "streamer", "consumer0", "consumer1", "the store's server"):
            assert f"kill -9 {victim}" in out
        total.update(counts)
        if all(total[fault] for fault in certain):
            return
    pytest.fail(f"not every kind of fault has struck: {total}")


@pytest.mark.long
def test_without_faults_nothing_goes_wrong(place: Path) -> None:
    out = assert_agreed(start(place, "--rides", "30", "--seconds", "3", "--faults", "off"), place)
    assert set(struck(out).values()) == {0}
    assert "all totals agree at offset 30" in out


@pytest.mark.fault
@pytest.mark.slow
def test_all_totals_agree_on_postgres_and_a_given_store_and_again(
    place: Path, postgres: Postgres, stores: Stores
) -> None:
    database, store = postgres.database(), stores.url("plain")
    for _ in range(2):
        words = ("--rides", "60", "--seconds", "2", "--db", database, "--store", store)
        out = assert_agreed(start(place, *words), place)
        assert "kill -9 the store's server" not in out
    with headwater.connect(store) as hw:
        assert not [name for name in hw.streams() if name.startswith(model.STREAM)]
    postgres.drop(database)


def test_a_consumer_that_is_wrong_by_a_millimetre_fails_the_run(place: Path) -> None:
    database = f"sqlite:///{place / 'rides.db'}"
    process = start(place, "--rides", "60", "--seconds", "3", "--faults", "off", "--db", database)
    engine = sa.create_engine(database)
    spoil = (
        sa.update(model.totals)
        .where(model.totals.c.consumer == "consumer1")
        .values(distance_mm=model.totals.c.distance_mm + 1)
    )

    def spoiled() -> bool:
        try:
            with engine.begin() as conn:
                return conn.execute(spoil).rowcount == 1
        except sa.exc.OperationalError:
            return False  # there are no tables yet, or they are just being written

    try:
        until(spoiled, 60)
        out, err = process.communicate()
    finally:
        process.kill()
        engine.dispose()
    assert (process.returncode, err) == (1, "")
    assert "the totals do NOT agree" in out
    assert re.search(r"wrong: consumer1 has .* where the log has", out)
    (left,) = place.glob("rocket-rides-*")
    assert str(left) in out.splitlines()[-1]


def test_rows_of_another_application_are_left_alone(place: Path) -> None:
    database = f"sqlite:///{place / 'app.db'}"
    engine = sa.create_engine(database)
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        outbox.stage(conn, "orders", "order-1", b"precious")
    process = start(place, "--db", database)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith("error: the outbox of this database holds rows of another application")
    assert outbox.status().backlog == 1
    assert not sa.inspect(engine).has_table(model.rides.name)
    engine.dispose()


@pytest.mark.parametrize(
    "words",
    [
        ("--db", "nonsense"),
        ("--db", "postgresql://user:secret@127.0.0.1:1/name"),
        ("--store", "nonsense"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(place: Path, words: tuple[str, str]) -> None:
    process = start(place, *words)
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert re.fullmatch(r"error: .+\n", err)
    assert "secret" not in err
    assert not list(place.iterdir())


# ── Rocket Rides: what its API answers, and what it stages ───────────────────────────────────────


class Reply(NamedTuple):
    status: int
    body: Any


class Api:
    """A running API on a database of its own."""

    def __init__(self, port: int, engine: sa.Engine, stream: str) -> None:
        self._port = port
        self.engine = engine
        self.stream = stream

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request(
                method, path, body, {name.replace("_", "-"): text for name, text in headers.items()}
            )
            response = connection.getresponse()
            assert response.headers["content-type"] == "application/json"
            return Reply(response.status, json.loads(response.read()))
        finally:
            connection.close()

    def post(self, body: object, **headers: str) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", "/rides", raw, **headers)

    def rides(self) -> list[tuple[int, int]]:
        """The rides of the database: id and distance."""
        with self.engine.connect() as conn:
            return [(row.id, row.distance_mm) for row in conn.execute(sa.select(model.rides))]

    def staged(self) -> list[tuple[int, int]]:
        """The rides that were staged, in the order in which they were."""
        with self.engine.connect() as conn:
            rows = conn.execute(sa.select(outbox_table).order_by(outbox_table.c.id))
            found = [json.loads(row.value) for row in rows]
        return [(ride["id"], ride["distance_mm"]) for ride in found]


@contextmanager
def serving(engine: sa.Engine, stream: str, **options: Any) -> Iterator[Api]:
    door = socket.create_server(("127.0.0.1", 0))
    app = create_app(engine, stream, **options)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        yield Api(door.getsockname()[1], engine, stream)
    finally:
        server.should_exit = True
        thread.join()
        door.close()


@pytest.fixture
def rides_engine(database_url: str) -> Iterator[sa.Engine]:
    engine = model.open_database(database_url)
    model.create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def api(rides_engine: sa.Engine, name: str) -> Iterator[Api]:
    with serving(rides_engine, name) as api:
        yield api


@pytest.fixture
def reader(tmp_path: Path, name: str) -> Iterator[Api]:
    """An API for tests of what it reads, where it does not matter which database there is."""
    engine = model.open_database(f"sqlite:///{tmp_path / 'app.db'}")
    model.create_tables(engine)
    with serving(engine, name) as api:
        yield api
    engine.dispose()


def test_a_ride_is_made_and_staged_and_the_answer_names_its_distance(api: Api) -> None:
    status, body = api.post({"distance": 1234.56789})
    assert status == 201
    assert "1234.6 m" in body["message"]
    assert (body["distance"], body["distance_mm"]) == (1234.6, 1_234_568)
    assert body["pilot"] in model.PILOTS
    assert api.rides() == api.staged() == [(body["id"], 1_234_568)]


@pytest.mark.parametrize(
    ("written", "distance_mm"),
    [
        ("7", 7000),
        ("0.1", 100),
        ("0.0005", 1),
        ("1e3", 1_000_000),
        ("+2.5", 2500),
        ("0.2999999999999999999999", 300),
        ("100000000", 100_000_000_000),
    ],
)
def test_a_distance_is_read_exactly_from_json_and_from_a_form(
    reader: Api, written: str, distance_mm: int
) -> None:
    form = {"content_type": "application/x-www-form-urlencoded"}
    answers = [reader.post(f"distance={written.replace('+', '%2B')}".encode(), **form)]
    if not written.startswith("+"):
        answers.append(reader.post(f'{{"distance": {written}}}'.encode()))
    answers.append(reader.post(f'{{"distance": "{written}"}}'.encode()))
    assert [answer.status for answer in answers] == [201] * len(answers)
    assert {answer.body["distance_mm"] for answer in answers} == {distance_mm}


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"", 422, "missing"),
        (b"{}", 422, "missing"),
        (b'{"distance": null}', 422, "missing"),
        (b'{"distance": ""}', 422, "missing"),
        (b"[1, 2]", 422, "missing"),
        (b'{"distance": "far"}', 422, "not a number"),
        (b'{"distance": true}', 422, "not a number"),
        (b'{"distance": [1]}', 422, "not a number"),
        (b'{"distance": NaN}', 422, "not a number"),
        (b'{"distance": -Infinity}', 422, "not a number"),
        (b'{"distance": "1_000"}', 422, "not a number"),
        (b'{"distance": 1e999999}', 422, "not a number"),
        (b'{"distance": %s}' % (b"1" * 5000), 422, "not a number"),
        (b'{"distance": 0}', 422, "not positive"),
        (b'{"distance": -3.5}', 422, "not positive"),
        (b'{"distance": 0.0004}', 422, "not positive"),
        (b'{"distance": -1e900}', 422, "not positive"),
        (b'{"distance": 1e900}', 422, "farther"),
        (b'{"distance": 12', 400, "not JSON"),
        (b'{"distance": 12.}', 400, "not JSON"),
        (b"\xff\xfe\xfa", 400, "not JSON"),
        (b"[" * (LONGEST_BODY - 1), 400, "not JSON"),
        (b" " * (LONGEST_BODY + 1), 413, "longer"),
    ],
)
def test_what_is_no_distance_is_refused_and_leaves_nothing(
    reader: Api, body: bytes, status: int, why: str
) -> None:
    answer = reader.post(body)
    assert answer.status == status
    assert why in answer.body["error"]
    assert reader.rides() == reader.staged() == []


def test_a_form_without_a_distance_is_refused(reader: Api) -> None:
    form = {"content_type": "application/x-www-form-urlencoded; charset=utf-8"}
    for body, why in ((b"", "missing"), (b"distance=", "missing"), (b"distance=x", "not a number")):
        answer = reader.post(body, **form)
        assert answer.status == 422
        assert why in answer.body["error"]


def test_other_places_and_verbs_are_refused(api: Api) -> None:
    for method, path in (("GET", "/"), ("POST", "/ride"), ("POST", "/rides/7")):
        status, body = api.ask(method, path)
        assert (status, "nothing at" in body["error"]) == (404, True)
    status, body = api.ask("GET", "/rides")
    assert (status, "POST to /rides" in body["error"]) == (405, True)
    assert api.ask("GET", "/health") == (200, {"status": "ok"})


def test_a_request_with_a_key_makes_one_ride_however_often_it_is_sent(api: Api) -> None:
    first = api.post({"distance": 5}, idempotency_key="once")
    replies: list[Reply] = []
    threads = [
        threading.Thread(
            target=lambda: replies.append(api.post({"distance": 5}, idempotency_key="once"))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies == [first] * 8
    assert api.post({"distance": 6}, idempotency_key="once").status == 409
    assert api.post({"distance": 5}, idempotency_key="k" * (LONGEST_KEY + 1)).status == 422
    assert api.rides() == api.staged() == [(first.body["id"], 5000)]
    # Without a key nobody can tell a repeat from a second ride.
    assert {api.post({"distance": 5}).status for _ in range(2)} == {201}
    assert len(api.rides()) == 3


def test_a_database_that_cannot_serve_is_told_as_such(tmp_path: Path, name: str) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'none.db'}")
    with serving(engine, name) as api:
        model.metadata.create_all(engine)
        with engine.begin() as conn:
            conn.execute(sa.text("DROP TABLE rocket_rides"))
        status, body = api.post({"distance": 5})
    assert (status, "send it again" in body["error"]) == (503, True)
    engine.dispose()


def test_a_slow_transaction_is_overtaken_and_arrives_all_the_same(
    rides_engine: sa.Engine, name: str, stores: Stores
) -> None:
    """The order of ids is not the order of commits; the streamer must not mind."""
    begun, ends = threading.Event(), threading.Event()

    def hold_the_first() -> None:
        if not begun.is_set():
            begun.set()
            assert ends.wait(60)

    # SQLite lets nobody overtake a transaction that has written.
    place = "before_write" if rides_engine.dialect.name == "sqlite" else "before_commit"
    url = stores.url("embedded")
    with (
        serving(rides_engine, name, **{place: hold_the_first}) as api,
        headwater.connect(url) as hw,
        Streamer(Outbox(rides_engine), hw) as streamer,
    ):
        replies: list[Reply] = []
        slow = threading.Thread(target=lambda: replies.append(api.post({"distance": 1})))
        slow.start()
        assert begun.wait(60)
        fast = api.post({"distance": 2}).body
        assert streamer.run_once() == 1
        ends.set()
        slow.join()
        assert streamer.run_once() == 1
        found = [json.loads(m.value)["id"] for m in hw.stream(name).read(1, 10) if m]
        hw.stream(name).delete()
    assert found == [fast["id"], replies[0].body["id"]]
    assert found[0] > found[1]


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://h/n"])
def test_a_database_that_cannot_be_shared_or_is_not_known_is_refused(url: str) -> None:
    with pytest.raises(headwater.InvalidInput):
        model.open_database(url)
