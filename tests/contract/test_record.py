"""A newer format is put to use when no client is left that does not understand it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import headwater
from headwater.errors import FormatTooNew
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Call
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
from tests.support.servers import Cluster, Server
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]
NEWER = FORMAT + 1
OURS = f"{headwater.__version__}:{VERSION}:{FORMAT}"
NEXT = f"999.0:{VERSION + 1}:{NEWER}"
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    store = Store(server.url)
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


# ── Who was seen ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["plain", pytest.param("cluster", marks=pytest.mark.cluster)])
def test_a_client_notes_itself_when_it_connects(kind: str, dial: Dial) -> None:
    with Server() if kind == "plain" else Cluster() as home:
        dial(home.url)
        store = Store(home.url)
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
        store: Any = Store(server.url, clock=lambda: now)
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
    store = Store(server.url, clock=lambda: next(clock))
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


# ── When a format is raised ──────────────────────────────────────────────────────────────────


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


# ── By hand ──────────────────────────────────────────────────────────────────────────────────


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


# ── What the functions write ─────────────────────────────────────────────────────────────────


def test_functions_write_the_format_in_use(
    server: Server, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, dial: Dial
) -> None:
    """As far as this release goes: a library for a made-up format says so in what it creates."""
    monkeypatch.setattr("headwater.store.library.FORMAT", NEWER)
    monkeypatch.setattr("headwater.store.steps.NOTE", noting(NEWER))
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
    monkeypatch.setattr("headwater.store.steps.NOTE", noting(NEWER))
    admin.hset(KEY, "format", NEWER)
    assert works(dial(server.url))
    assert admin.fcall(name_in_server("hw_version"), 0).endswith(b":%d" % FORMAT)


def noting(understood: int) -> Call:
    return Call("hw_store_note", KEY, ("999.0", VERSION, understood, COUNTS_MS))
