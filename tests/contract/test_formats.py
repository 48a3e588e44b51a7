"""What a newer release has written is refused as a whole, before anything is changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.errors import FormatTooNew
from headwater.log.node import batch_of
from headwater.outbox import Outbox, Streamer
from headwater.spark.jobs.backfill import BackfillPlan, Journal
from headwater.sql.schemas import Schema
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Call
from headwater.store.directory import FORMAT_FILE
from headwater.store.library import (
    COUNTS_BY_HAND_MS,
    COUNTS_MS,
    FORMAT,
    KEY,
    NOTE_S,
    VERSION,
    library,
    name_in_server,
    raise_format,
    read_record,
)
from headwater.store.store import Store
from tests.support.blocking import Loop
from tests.support.consumers import Desk
from tests.support.servers import Cluster, Server
from tests.support.stores import Stores, works

NEWER = FORMAT + 1
RECEIPT = "1733000000000123:0:1:1.1733000000000001"
Dial = Callable[[str | None], headwater.Headwater]
Work = Callable[[headwater.Headwater], Any]


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def fill(hw: headwater.Headwater, name: str) -> None:
    """Make one object of each kind."""
    stream = hw.stream(name)
    stream.write_many([("t", b"1"), ("t", b"2"), ("t", b"3")])
    stream.group("g").read(1, ack_ms=60_000)
    stream.stage(batch_of(["t"], [b"staged"]), f"st-{name}")
    hw.queue(name).push(b"1")
    hw.topic(name, partitions=1).write("t", b"1")
    hw.ick_channel(name, shards=1).add({"a": 1.0, "b": 2.0})


def all_bytes(admin: redis.Redis) -> dict[bytes, Any]:
    """Return what lies under each key; the record of the store is no object."""
    return {key: admin.dump(key) for key in admin.scan_iter("hw:*") if key != b"hw:{store}"}


def work_of(name: str) -> dict[str, tuple[str, str, Work]]:
    """Return calls: the key of the hash, how the error names the object, the call."""
    stream, group, queue = f"hw:s:{{{name}}}", f"hw:s:{{{name}}}:g:1:g", f"hw:q:{{{name}}}"
    channel, shard = f"hw:c:{{{name}}}", f"hw:cs:{{{name}/<epoch>/0}}"
    return {
        "write": (stream, "stream", lambda hw: hw.stream(name).write("t", b"4")),
        "batch": (stream, "stream", lambda hw: hw.stream(name).write_many([("t", b"4")] * 2000)),
        "read": (stream, "stream", lambda hw: hw.stream(name).read(1, 10)),
        "seal": (stream, "stream", lambda hw: hw.stream(name).seal()),
        "evict": (stream, "stream", lambda hw: hw.stream(name).evict(2)),
        "info": (stream, "stream", lambda hw: hw.stream(name).info()),
        "group read of a stream": (stream, "stream", lambda hw: hw.stream(name).group("g").read(1)),
        "group read": (group, "stream", lambda hw: hw.stream(name).group("g").read(1)),
        "ack": (group, "stream", lambda hw: hw.stream(name).group("g").ack(1)),
        "nack": (group, "stream", lambda hw: hw.stream(name).group("g").nack(1)),
        "seek": (group, "stream", lambda hw: hw.stream(name).group("g").seek(1)),
        "delete of a stream": (stream, "stream", lambda hw: hw.stream(name).delete()),
        "retain": (stream, "stream", lambda hw: hw.stream(name).retain(max_count=1)),
        "compact": (stream, "stream", lambda hw: hw.stream(name).compact()),
        "stage": (
            f"{stream}:staged:st-{name}",
            "stream",
            lambda hw: hw.stream(name).stage(batch_of(["t"], [b"more"]), f"st-{name}"),
        ),
        "push": (queue, "queue", lambda hw: hw.queue(name).push(b"2")),
        "pop": (queue, "queue", lambda hw: hw.queue(name).pop(ack_ms=60_000)),
        "settle": (queue, "queue", lambda hw: hw.queue(name).ack(RECEIPT)),
        "purge": (queue, "queue", lambda hw: hw.queue(name).purge()),
        "delete of a queue": (queue, "queue", lambda hw: hw.queue(name).delete()),
        "stats": (queue, "queue", lambda hw: hw.queue(name).stats()),
        "topic": (f"hw:t:{{{name}}}", "topic", lambda hw: hw.topic(name).write("t", b"2")),
        "open": (channel, "channel", lambda hw: hw.ick_channel(name).add({"c": 3.0})),
        "add": (shard, "channel", lambda hw: hw.ick_channel(name).add({"c": 3.0})),
        "delete of a channel": (channel, "channel", lambda hw: hw.ick_channel(name).delete()),
        "reserve": (shard, "channel", lambda hw: hw.ick_channel(name).reserve(1)),
    }


@pytest.mark.parametrize("call", work_of(""))
def test_an_object_of_a_newer_format_is_refused_and_nothing_is_changed(
    call: str, dial: Dial, own_server: Server, name: str
) -> None:
    hw = dial(own_server.url)
    fill(hw, name)
    key, kind, work = work_of(name)[call]
    with own_server.client() as admin:
        epoch: Any = admin.hget(f"hw:c:{{{name}}}", "epoch")
        admin.hset(key.replace("<epoch>", epoch.decode()), "format", NEWER)
        before = all_bytes(admin)
        with pytest.raises(FormatTooNew, match="upgrade the headwater package") as caught:
            work(hw)
        assert all_bytes(admin) == before
    assert caught.value.what.startswith(f"{kind} {name!r} at ")
    assert (caught.value.found, caught.value.known) == (NEWER, FORMAT)


def test_objects_without_a_format_are_of_the_first(
    dial: Dial, own_server: Server, name: str
) -> None:
    hw = dial(own_server.url)
    fill(hw, name)
    with own_server.client() as admin:
        admin.hdel(f"hw:s:{{{name}}}", "format")
    assert hw.stream(name).write("t", b"4") == 4
    for call, (_, _, work) in work_of(name).items():
        if call != "batch":
            work(hw)


KNOWN = max(
    int(file.name[:4]) for file in (resources.files("headwater.outbox") / "sql/sqlite").iterdir()
)
NEWER_SCHEMA = (
    rf"the schema 'outbox' in the database at .* has format {KNOWN + 1}.*up to {KNOWN}; upgrade"
)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


def note_version(engine: sa.Engine, package: str, version: int) -> None:
    """Leave what the files of a later release leave."""
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS headwater_schemas "
            "(package TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL)"
        )
        conn.exec_driver_sql("DELETE FROM headwater_schemas")
        words = {"package": package, "version": version}
        conn.execute(sa.text("INSERT INTO headwater_schemas VALUES (:package, :version)"), words)


def test_tables_of_a_newer_release_are_not_created_over(engine: sa.Engine) -> None:
    note_version(engine, "outbox", KNOWN + 1)
    with pytest.raises(FormatTooNew, match=NEWER_SCHEMA):
        Outbox(engine).create_all()
    assert sa.inspect(engine).get_table_names() == ["headwater_schemas"]


def test_a_streamer_leaves_tables_of_a_newer_release_alone(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"1")
    note_version(engine, "outbox", KNOWN + 1)
    for run in (streamer.run_once, streamer.run):
        with pytest.raises(FormatTooNew, match=NEWER_SCHEMA):
            run()
    assert not hw.stream(name).info().exists
    note_version(engine, "outbox", KNOWN)
    assert streamer.run_once() == 1


def test_a_consumer_leaves_tables_of_a_newer_release_alone(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write("t", b"1")
    note_version(desk.engine, "outbox", KNOWN + 1)
    with pytest.raises(FormatTooNew, match=NEWER_SCHEMA):
        desk.consumer("c", name).run_once()
    assert desk.effects("c") == []
    note_version(desk.engine, "outbox", KNOWN)
    assert desk.consumer("c", name).run_once() == 1


@pytest.mark.parametrize("package", ["headwater.spark.jobs", "headwater.spark.sql_sink"])
def test_tables_of_spark_have_a_version_each(engine: sa.Engine, package: str) -> None:
    schema = Schema(package)
    schema.ensure(engine)
    note_version(engine, "outbox", KNOWN)
    schema.ensure(engine)
    note_version(engine, package.rpartition(".")[2], 9)
    with pytest.raises(FormatTooNew, match=f"the schema '{schema.name}' .* has format 9"):
        schema.ensure(engine)


def test_a_checkpoint_of_a_newer_release_is_refused(hw: Headwater, name: str) -> None:
    # Spark 4.1 has no streaming reads from us.
    pytest.importorskip("pyspark.sql.streaming.datasource")
    from headwater.spark.log.stream_reader import StreamReader

    nothing: Any = None
    target = SimpleNamespace(hw=hw, name=name, streams=lambda: {0: name})
    reading: Any = SimpleNamespace(target=target)
    reader = StreamReader(reading, nothing, 1, nothing, None)
    reader.commit({"0": {"next": 5, "created": 1}})
    with pytest.raises(FormatTooNew, match=r"checkpoint of this query has format 2.*upgrade"):
        reader.commit({"format": 2, "positions": "in another way"})


def test_a_plan_of_a_newer_release_is_refused(hw: Headwater, name: str) -> None:
    journal = Journal(hw, name)
    older: dict[str, Any] = {"facts": {}, "chunks": []}
    journal.stream.write("plan", msgspec.json.encode(older))
    assert journal.read() == BackfillPlan({}, [])
    journal.stream.write("plan", msgspec.json.encode({"format": 2, "steps": []}))
    with pytest.raises(FormatTooNew, match=f"the plan of backfill '{name}' has format 2"):
        journal.read()


def test_a_data_directory_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    with headwater.connect(url) as hw:
        assert works(hw)
    file = tmp_path / "store" / FORMAT_FILE
    file.write_text("2\n")
    before = sorted(path.name for path in file.parent.iterdir())
    with pytest.raises(FormatTooNew, match=r"the data directory .*/store has format 2.*upgrade"):
        headwater.connect(url)
    assert sorted(path.name for path in file.parent.iterdir()) == before
    file.write_text("1\n")
    with headwater.connect(url) as hw:
        assert works(hw)


OURS = f"{headwater.__version__}:{VERSION}:{FORMAT}"
NEXT = f"999.0:{VERSION + 1}:{NEWER}"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = Store.open(server.url)
    yield store
    store.close()


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with server.client() as admin:
        yield admin


def note(store: Store, release: str, understood: int) -> int:
    """Note a client of another release; returns the format in use."""
    words = (release, VERSION + understood - FORMAT, understood, COUNTS_MS)
    answer: int = store.ask(Call("hw_store_note", KEY, words))
    return answer


def seen_ago(store: Store, admin: redis.Redis, kind: str, ms: int) -> None:
    admin.hset(KEY, kind, store.run(read_record()).now_ms - ms)


def format_in_use(store: Store) -> int:
    return store.run(read_record()).format


@pytest.mark.parametrize("kind", ["plain", pytest.param("cluster", marks=pytest.mark.cluster)])
def test_a_client_notes_itself_when_it_connects(kind: str, dial: Dial) -> None:
    with Server() if kind == "plain" else Cluster() as home:
        dial(home.url)
        store = Store.open(home.url)
        record = store.run(read_record())
        store.close()
    assert record.format == FORMAT
    (seen,) = record.seen
    assert seen[:3] == (headwater.__version__, VERSION, FORMAT)
    assert 0 <= record.now_ms - seen.seen_ms < 60_000


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_client_that_is_used_notes_itself_once_a_minute(
    kind: str, server: Server, admin: redis.Redis, loop: Loop
) -> None:
    now = 0.0
    if kind == "sync":
        store: Any = Store.open(server.url, clock=lambda: now)
        ask = store.ask
    else:
        store = loop.wait(AsyncStore.open(server.url, clock=lambda: now))

        def ask(request: Call) -> Any:
            return loop.wait(store.ask(request))

    look = Call("hw_registry_list", "hw:{streams}", read_only=True)

    def is_noted() -> bool:
        admin.hdel(KEY, OURS)
        ask(look)
        return bool(admin.hexists(KEY, OURS))

    assert not is_noted()
    now = NOTE_S + 1
    assert [is_noted() for _ in range(3)] == [True, False, False]
    now = 2 * NOTE_S + 2
    admin.hset(KEY, "format", NEWER)
    with pytest.raises(FormatTooNew, match=f"the store at .* has format {NEWER}"):
        ask(look)
    if kind == "sync":
        store.close()
    else:
        loop.wait(store.close())


def test_a_note_that_fails_does_not_fail_the_call(server: Server, admin: redis.Redis) -> None:
    clock = itertools.count(0.0, NOTE_S)
    store = Store.open(server.url, clock=lambda: next(clock))
    admin.delete(KEY)
    admin.set(KEY, "something else")
    assert store.ask(Call("hw_registry_list", "hw:{streams}", read_only=True)) == []
    store.close()


@pytest.mark.parametrize(
    ("setting", "noted"), [(("maxmemory", 1), True), (("min-replicas-to-write", 1), False)]
)
def test_a_server_that_takes_no_writes_can_be_connected_to_and_read(
    setting: tuple[str, int], noted: bool, server: Server, admin: redis.Redis, dial: Dial
) -> None:
    assert dial(server.url).stream("s").write("t", b"1") == 1
    admin.hdel(KEY, OURS)
    admin.config_set(*setting)
    hw = dial(server.url)
    assert [message and message.value for message in hw.stream("s").read(1, 1)] == [b"1"]
    assert bool(admin.hexists(KEY, OURS)) is noted
    if not noted:
        admin.config_set(setting[0], 0)
        admin.hset(KEY, "format", NEWER)
        admin.config_set(*setting)
        with pytest.raises(FormatTooNew, match=f"the store at .* has format {NEWER}"):
            dial(server.url)


def test_kinds_of_clients_are_forgotten_when_they_do_not_count_any_more(
    store: Store, admin: redis.Redis
) -> None:
    for release in range(50):
        seen_ago(store, admin, f"0.0.{release}:1:1", COUNTS_MS + 1)
    note(store, "999.0", FORMAT)
    assert admin.hlen(KEY) == 3, "format, ours, theirs"


def test_a_new_store_begins_with_what_its_first_client_understands(
    store: Store, admin: redis.Redis
) -> None:
    admin.delete(KEY)
    assert note(store, "999.0", NEWER) == NEWER


def test_a_newer_format_waits_for_older_clients(store: Store, admin: redis.Redis) -> None:
    assert note(store, "999.0", NEWER) == FORMAT
    seen_ago(store, admin, OURS, COUNTS_MS - DAY_MS)
    assert note(store, "999.0", NEWER) == FORMAT
    seen_ago(store, admin, OURS, COUNTS_MS + 1)
    assert note(store, "999.0", NEWER) == NEWER
    assert format_in_use(store) == NEWER


def test_the_newest_format_that_all_understand_is_used(store: Store, admin: redis.Redis) -> None:
    admin.delete(KEY)
    note(store, "1.0", 1)
    assert note(store, "3.0", 3) == 1
    seen_ago(store, admin, f"1.0:{VERSION + 1 - FORMAT}:1", COUNTS_MS + 1)
    seen_ago(store, admin, f"2.0:{VERSION + 2 - FORMAT}:2", 0)
    assert note(store, "3.0", 3) == 2


def test_a_client_that_does_not_understand_the_format_in_use_is_refused_and_not_noted(
    server: Server, admin: redis.Redis, dial: Dial
) -> None:
    admin.hset(KEY, "format", NEWER)
    admin.hdel(KEY, OURS)
    with pytest.raises(FormatTooNew, match="upgrade the headwater package") as caught:
        dial(server.url)
    assert caught.value.what == f"the store at {server.url}"
    assert (caught.value.found, caught.value.known) == (NEWER, FORMAT)
    assert not admin.hexists(KEY, OURS)


def test_a_format_that_is_in_use_is_never_taken_back(store: Store, admin: redis.Redis) -> None:
    admin.hset(KEY, "format", NEWER)
    with pytest.raises(FormatTooNew):
        note(store, "0.0.1", FORMAT)
    store.run(raise_format(0))
    assert format_in_use(store) == NEWER


def raised(store: Store, counts_ms: int) -> list[bytes]:
    answer: list[bytes] = store.ask(Call("hw_store_raise", KEY, (NEWER, counts_ms)))
    return answer


def test_by_hand_a_format_is_raised_when_older_clients_are_gone_for_minutes(
    store: Store, admin: redis.Redis
) -> None:
    note(store, "999.0", NEWER)
    assert raised(store, COUNTS_BY_HAND_MS) == [OURS.encode()]
    assert format_in_use(store) == FORMAT
    seen_ago(store, admin, OURS, COUNTS_BY_HAND_MS + 1)
    assert raised(store, COUNTS_BY_HAND_MS) == []
    assert format_in_use(store) == NEWER


def test_by_force_a_format_is_raised_whoever_was_seen(store: Store) -> None:
    assert raised(store, 0) == []
    assert format_in_use(store) == NEWER


def test_functions_write_the_format_in_use(
    server: Server, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, dial: Dial
) -> None:
    """As far as this release goes: a library for a made-up format says so in what it creates."""
    monkeypatch.setattr("headwater.store.library.FORMAT", NEWER)
    note_as(monkeypatch, noting(NEWER))
    library.cache_clear()
    try:
        hw = dial(server.url)
        assert admin.fcall(name_in_server("hw_version"), 0).endswith(b":%d" % NEWER)
        assert works(hw)
        hw.stream("s").write("t", b"1")
        assert admin.hget("hw:s:{s}", "format") == b"%d" % NEWER
        # A library that is lost is brought back as it was.
        admin.function_flush()
        hw.stream("s").write("t", b"2")
        assert admin.fcall(name_in_server("hw_version"), 0).endswith(b":%d" % NEWER)
    finally:
        library.cache_clear()


def test_who_may_not_load_functions_continues_with_those_that_are_there(
    server: Server, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, dial: Dial
) -> None:
    dial(server.url)
    admin.execute_command("ACL", "SETUSER", "default", "-function|load")
    note_as(monkeypatch, noting(NEWER))
    admin.hset(KEY, "format", NEWER)
    assert works(dial(server.url))
    assert admin.fcall(name_in_server("hw_version"), 0).endswith(b":%d" % FORMAT)


def note_as(monkeypatch: pytest.MonkeyPatch, note: Call) -> None:
    """Let clients note themselves by another call than this release does."""
    for twin in ("store", "aio_store"):
        monkeypatch.setattr(f"headwater.store.{twin}.NOTE", note)


def noting(understood: int) -> Call:
    return Call("hw_store_note", KEY, ("999.0", VERSION, understood, COUNTS_MS))
