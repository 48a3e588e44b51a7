"""What a failed call means: never an error that hides a write, never a repeat that could be one."""

from __future__ import annotations

import logging
import sqlite3
import ssl
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from redis._parsers.base import BaseParser
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError
from sqlalchemy import exc, make_url

import headwater.aio
from headwater import Group, Queue, TopicGroup, errors
from headwater.aio import AsyncGroup, AsyncQueue, AsyncTopicGroup
from headwater.errors import (
    AccessDenied,
    DatabaseUnreachable,
    InvalidInput,
    NotCreated,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
    TooManyClients,
    UnreadableNode,
)
from headwater.kernel.failures import LONGEST_DELAY_S, delay_s
from headwater.log import grouping, writing
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle, batch_of_entries
from headwater.outbox.consuming import DatabaseOutage, is_passing
from headwater.spark.engine.options import SourceOptions
from headwater.store import faults
from headwater.store.call import Call, Operation, Wait
from headwater.store.connecting import SlotMap
from headwater.store.faults import Recovery, Refusal, unsent

WHERE = "redis://h:6379"
PLAIN = Call("hw_stream_write", "k")
NUMBERED = Call("hw_stream_write", "k", repeatable=True)
LOOK = Call("hw_stream_read", "k", read_only=True)
BLOCK = Wait("k", ("BLPOP", "k", 1), 1000)
BROKEN = redis.ConnectionError("Connection closed by server.")


def answer(text: str) -> BaseException:
    """Return the error that redis-py makes of a server's answer."""
    error: BaseException = BaseParser.parse_error(text)
    return error


@pytest.mark.parametrize("request_", [PLAIN, NUMBERED, LOOK, BLOCK])
@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("ERR Function not found", "load"),
        ("LOADING Redis is loading the dataset in memory", "renew"),
        ("READONLY You can't write against a read only replica.", "renew"),
        ("MASTERDOWN Link with MASTER is down.", "renew"),
        ("CLUSTERDOWN The cluster is down", "renew"),
        ("UNBLOCKED force unblock from blocking operation, instance state changed", "renew"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "wait"),
        ("BUSY Redis is busy running a script.", "wait"),
        ("NOREPLICAS Not enough good replicas to write.", "wait"),
    ],
)
def test_a_server_that_refuses_for_now_is_asked_again(
    request_: Call | Wait, text: str, step: str
) -> None:
    assert Recovery(request_, WHERE).next_step(answer(text)) == step
    assert Recovery(request_, WHERE).next_step(unsent(answer(text))) == step, "refused before it"


def test_a_first_contact_may_wait_less_for_a_store_that_nobody_answers_for() -> None:
    assert Recovery(LOOK, WHERE).next_step(unsent(BROKEN)) == "renew", "as a call does"
    with pytest.raises(StoreUnreachable):
        Recovery(LOOK, WHERE, absent_s=0).next_step(unsent(BROKEN))
    there = Recovery(LOOK, WHERE, absent_s=0)
    assert there.next_step(answer("LOADING loading")) == "renew"
    assert there.next_step(unsent(BROKEN)) == "renew", "a server has answered"


@pytest.mark.parametrize("request_", [PLAIN, NUMBERED, LOOK, BLOCK])
def test_a_server_that_takes_no_more_connections_is_said_at_once(request_: Call | Wait) -> None:
    full = redis.ConnectionError("max number of clients reached")
    with pytest.raises(TooManyClients, match="maxclients"):
        Recovery(request_, WHERE).next_step(unsent(full))


def test_a_certificate_that_is_refused_is_not_tried_again() -> None:
    refused = redis.ConnectionError("Error 1 connecting to h:6379.")
    refused.__context__ = ssl.SSLCertVerificationError("certificate verify failed")
    with pytest.raises(StoreUnreachable, match="TLS failed") as caught:
        Recovery(LOOK, WHERE).next_step(unsent(refused))
    assert caught.value.lasting


def test_a_socket_that_is_missing_is_waited_for_and_a_file_of_certificates_is_not() -> None:
    try:
        try:
            Path("/nonexistent").stat()
        except OSError as error:
            raise redis.ConnectionError(f"Error 2 connecting to /r.sock. {error}.")  # noqa: B904
    except redis.ConnectionError as error:
        missing = error
    assert Recovery(LOOK, "unix:///r.sock").next_step(unsent(missing)) == "renew"
    with pytest.raises(StoreUnreachable) as caught:
        Recovery(LOOK, "rediss://h:6379").next_step(unsent(missing))
    assert caught.value.lasting


def test_a_server_of_another_kind_than_the_url_says_is_not_waited_for() -> None:
    with pytest.raises(StoreError, match="use a redis:// URL") as caught:
        Recovery(LOOK, WHERE).next_step(answer("ERR This instance has cluster support disabled"))
    assert caught.value.lasting
    with pytest.raises(StoreError, match=r"use a redis\+cluster:// URL") as caught:
        faults.refuse_node({"redis_mode": "cluster"}, WHERE)
    assert caught.value.lasting
    with pytest.raises(StoreUnreachable) as away:
        Recovery(LOOK, WHERE, patience_s=0).next_step(unsent(BROKEN))
    assert not away.value.lasting


def test_a_server_of_another_protocol_is_not_tried_again() -> None:
    garbled = redis.InvalidResponse("Protocol error")
    assert Recovery(LOOK, WHERE).next_step(garbled) == "renew", "on a connection that worked"
    with pytest.raises(OutcomeUnknown):
        Recovery(PLAIN, WHERE).next_step(garbled)
    with pytest.raises(StoreUnreachable):
        Recovery(LOOK, WHERE).next_step(unsent(redis.InvalidResponse("Protocol error")))


@pytest.mark.parametrize(
    "error",
    [
        BROKEN,
        redis.TimeoutError("Timeout reading from h:6379"),
        TimeoutError(),
        ConnectionResetError(104, "Connection reset by peer"),
        ssl.SSLError("broken"),
    ],
)
def test_a_connection_that_breaks_after_sending_leaves_only_plain_calls_unknown(
    error: BaseException,
) -> None:
    for repeatable in (NUMBERED, LOOK, BLOCK):
        assert Recovery(repeatable, WHERE).next_step(error) == "renew"
    with pytest.raises(OutcomeUnknown):
        Recovery(PLAIN, WHERE).next_step(error)
    assert Recovery(PLAIN, WHERE).next_step(unsent(error)) == "renew", "it was not sent"


def test_what_happened_before_does_not_colour_what_happened_after_sending() -> None:
    try:
        raise answer("LOADING loading")
    except redis.RedisError:
        try:
            raise redis.ConnectionError("Connection closed by server.")
        except redis.RedisError as error:
            broken = error
    assert isinstance(broken.__context__, redis.BusyLoadingError)
    with pytest.raises(OutcomeUnknown):
        Recovery(PLAIN, WHERE).next_step(broken)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0)
    with pytest.raises(StoreUnreachable):
        Recovery(LOOK, WHERE).next_step(BROKEN)
    with pytest.raises(StoreUnreachable):
        Recovery(PLAIN, WHERE).next_step(unsent(BROKEN))
    with pytest.raises(StoreError, match="cannot serve now"):
        Recovery(PLAIN, WHERE).next_step(answer("READONLY You can't write"))


def test_a_repeat_that_cannot_be_made_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for last in (unsent(BROKEN), answer("LOADING loading")):
        recovery, look = Recovery(NUMBERED, WHERE), Recovery(LOOK, WHERE)
        assert recovery.next_step(BROKEN) == look.next_step(BROKEN) == "renew", (
            "sent, and no answer"
        )
        monkeypatch.setattr(recovery, "_until", 0)
        monkeypatch.setattr(look, "_until", 0)
        with pytest.raises(OutcomeUnknown):
            recovery.next_step(last)
        with pytest.raises(StoreError) as caught:
            look.next_step(last)
        assert not isinstance(caught.value, OutcomeUnknown), "a read changes nothing"


def test_waits_grow_up_to_half_a_second() -> None:
    recovery = Recovery(LOOK, WHERE)
    delays = []
    for _ in range(12):
        recovery.next_step(BROKEN)
        delays.append(recovery.delay_s)
    assert delays == sorted(delays)
    assert delays[0] <= 0.01
    assert delays[-1] == 0.5


def test_a_library_that_keeps_disappearing_is_said() -> None:
    recovery = Recovery(PLAIN, WHERE)
    for _ in range(20):
        recovery.next_step(answer("READONLY You can't write"))
    steps = [recovery.next_step(answer("ERR Function not found")) for _ in range(3)]
    assert steps == ["load"] * 3, "a long failover before does not count"
    with pytest.raises(StoreError, match="keeps disappearing"):
        recovery.next_step(answer("ERR Function not found"))


def test_a_refusal_of_a_function_is_handed_to_the_operation() -> None:
    with pytest.raises(Refusal) as caught:
        Recovery(PLAIN, WHERE).next_step(answer("HW_STALE 17"))
    assert (caught.value.code, caught.value.words) == ("STALE", ["17"])


@pytest.mark.parametrize(
    "text",
    [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM User app has no permissions to run the 'fcall' command",
        "ERR ACL failure in script: User app has no permissions to run the 'xadd' command",
        "ERR The user executing the script can't run this command or subcommand script: f",
        "ERR The user executing the script can't access at least one of the keys script: f",
    ],
)
def test_a_user_without_rights_is_told_at_once(text: str) -> None:
    for error in (answer(text), unsent(answer(text))):
        with pytest.raises(AccessDenied):
            Recovery(PLAIN, WHERE).next_step(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", "raise maxmemory"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "No space left"),
        ("ERR something else", "something else; run `headwater doctor`"),
    ],
)
def test_any_other_answer_is_passed_on(text: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        Recovery(LOOK, WHERE).next_step(answer(text))


# ── Which errors are waited out, for how long, and what is said about them ───────────────────────


URL = make_url("postgresql://me:hush-hush@here/app")


def of_sqlite(code: int) -> exc.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return exc.OperationalError("UPDATE t", None, error)


def of_postgres(state: str) -> exc.DBAPIError:
    kind = psycopg.errors.lookup(state)
    return exc.DBAPIError("UPDATE t", None, kind("as Postgres says it"))


PASSING = [
    errors.StoreUnreachable("here", "it is away"),
    errors.OutcomeUnknown("hw_stream_write", "it broke"),
    errors.EmbeddedServerFailed("it does not come up"),
    errors.StoreError("it is out of memory"),
    exc.TimeoutError("no connection is free"),
    exc.DBAPIError("SELECT 1", None, ValueError("closed"), connection_invalidated=True),
    exc.OperationalError("SELECT 1", None, psycopg.OperationalError("no answer")),
    exc.InterfaceError("SELECT 1", None, psycopg.InterfaceError("closed")),
    psycopg.OperationalError("no answer"),
    *(
        psycopg.OperationalError(f"connection failed: connection to server failed: {words}")
        for words in (
            "Connection refused",
            "FATAL:  the database system is starting up",
            "FATAL:  the database system is not yet accepting connections",
            "FATAL:  sorry, too many clients already",
        )
    ),
    psycopg.OperationalError("failed to resolve host 'h': Name or service not known"),
    of_sqlite(sqlite3.SQLITE_BUSY),
    of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT),
    of_sqlite(sqlite3.SQLITE_FULL),
    of_sqlite(sqlite3.SQLITE_IOERR_WRITE),
    *(of_postgres(s) for s in ("40001", "40P01", "53300", "55P03", "57P01", "57P03", "08006")),
    of_postgres("25006"),
]
LASTING = [
    ValueError("of the handler's own"),
    ConnectionError("to somebody else"),
    errors.AccessDenied("here", "no", "ask"),
    errors.StoreTooOld("here", "Redis 6"),
    errors.FormatTooNew("stream 's'", 2, 1),
    errors.StoreUnreachable("here", "its certificate is refused", lasting=True),
    errors.EmbeddedServerFailed("its directory is gone", lasting=True),
    errors.GapError("c", "s", 1, 2),
    *(
        psycopg.OperationalError(f"connection failed: connection to server failed: {words}")
        for words in (
            'FATAL:  database "nope" does not exist',
            'FATAL:  role "nobody" does not exist',
            'FATAL:  role "nobody" is not permitted to log in',
            'FATAL:  password authentication failed for user "me"',
            "fe_sendauth: no password supplied",
            'FATAL:  no pg_hba.conf entry for host "[local]"',
            'FATAL:  pg_hba.conf rejects connection for host "[local]"',
        )
    ),
    of_sqlite(sqlite3.SQLITE_ERROR),
    of_sqlite(sqlite3.SQLITE_CONSTRAINT_UNIQUE),
    *(of_postgres(state) for state in ("23505", "42P01", "42501", "22012", "57014")),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_trouble_of_database_and_store_passes(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_another_try_would_meet_again_does_not(error: Exception) -> None:
    assert not is_passing(error)


def test_delays_double_up_to_the_longest() -> None:
    assert [delay_s(n, 1, 10) for n in (1, 2, 3, 4, 5, 6, 10_000)] == [1, 2, 4, 8, 10, 10, 10]


def test_an_outage_is_logged_twice_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, lambda: now)
    delays = []
    for _ in range(50):
        delays.append(outage.meet(ValueError("gone\nand more")))
        now += 1
        assert outage.lasts_s == now - 100
    outage.over()
    outage.over()
    assert outage.lasts_s == 0
    assert delays[0] < delays[1] < delays[-1] == LONGEST_DELAY_S
    assert [record.getMessage() for record in caplog.records] == [
        "consumer 'c' is held up, and retries until it works: gone",
        "consumer 'c' works again, after 50.0 s and 50 tries",
    ]


def test_what_is_logged_of_an_outage_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, time.monotonic)
    outage.meet(psycopg.OperationalError("no answer to hush-hush"))
    assert [record.getMessage() for record in caplog.records] == [
        "consumer 'c' is held up, and retries until it works: no answer to ***"
    ]


def test_a_transaction_that_was_rolled_back_for_another_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, time.monotonic)
    for _ in range(20):
        outage.meet(of_postgres("40001"))
        outage.meet(of_postgres("40P01"))
        outage.over()
    assert caplog.records == []
    for _ in range(20):
        outage.meet(of_postgres("40001"))
    outage.over()
    assert len(caplog.records) == 2, "unless there is no end to it"


# ── What an error says one should do is what helps, in the words of who reads it ─────────────────


@pytest.mark.parametrize(
    ("entries", "cure"),
    [
        ({"a": b"v"}, "use dict.items"),
        (["ab", "cd"], "write one message as"),
        (("a", b"v"), "write one message as"),
    ],
)
def test_what_is_no_list_of_pairs_is_refused_with_the_form_that_fits(
    entries: Any, cure: str
) -> None:
    with pytest.raises(InvalidInput, match=cure):
        batch_of_entries(entries, carry=False)


def test_a_connection_that_was_not_awaited_says_so() -> None:
    connecting: Any = headwater.aio.connect("redis://nowhere")
    with pytest.raises(AttributeError, match=r"write `hw = await .*'stream'"):
        connecting.stream("a")
    with pytest.raises(TypeError, match=r"`async with headwater\.aio\.connect"), connecting:
        pass


@pytest.mark.parametrize(
    "kind", [Group, TopicGroup, Queue, AsyncGroup, AsyncTopicGroup, AsyncQueue]
)
def test_an_option_that_no_worker_takes_is_refused_where_it_is_written(kind: Any) -> None:
    with pytest.raises(TypeError, match="'concurency'; did you mean 'concurrency'"):
        kind.worker(None, concurency=8)


def test_a_source_calls_the_store_its_url() -> None:
    with pytest.raises(InvalidInput, match="unknown option 'store'; did you mean 'url'"):
        SourceOptions({"store": "embedded:"}, ["stream", "url"])


def test_a_database_is_said_to_run_only_if_it_is_a_server() -> None:
    assert "check that it runs" in str(DatabaseUnreachable("postgresql://h/db", "gone"))
    assert "you may write to it" in str(DatabaseUnreachable("sqlite:///app.db", "unable to open"))
    assert "other program" in str(DatabaseUnreachable("sqlite:///app.db", "database is locked"))


def test_missing_tables_are_made_by_a_call_or_by_a_command() -> None:
    said = str(NotCreated("headwater_outbox"))
    assert "create_all()" in said
    assert "`headwater outbox create --db URL`" in said


# ── What is done stays done: trouble with what comes after it does not look like its failure ─────


GONE = StoreUnreachable("redis://h", "Connection refused")


def finish(operation: Operation[Any], replies: dict[str, Any], fault: Exception) -> Any:
    """Run an operation with these replies by function; every other call fails."""
    try:
        request = operation.send(None)
        while True:
            assert isinstance(request, Call)
            if request.function in replies:
                request = operation.send(replies[request.function])
            else:
                request = operation.throw(fault)
    except StopIteration as done:
        return done.value


@pytest.mark.parametrize("fault", [GONE, OutcomeUnknown("hw_stream_seal", "broken")])
@pytest.mark.parametrize("unsealed", [1, 2000])
def test_a_write_that_is_acknowledged_is_reported_as_done(fault: Exception, unsealed: int) -> None:
    stream = StreamHandle("s", set())
    reply = {"hw_stream_write": [7, 7, unsealed, 0, 0, b"1 "]}
    assert finish(writing.write(stream, "t", b"v", None), reply, fault) == 7
    batch = [("t", b"v")] * 600
    reply = {"hw_stream_write": [1, 600, unsealed, 0, 0, b"1 "]}
    assert finish(writing.write_many(stream, batch, None, None, None), reply, fault) == range(
        1, 601
    )
    assert stream.registered == set(), "it will be told later"


def test_a_write_that_fails_is_reported_as_failed() -> None:
    stream = StreamHandle("s", set())
    with pytest.raises(StoreUnreachable):
        finish(writing.write(stream, "t", b"v", None), {}, GONE)


def test_what_a_read_took_reaches_its_caller_even_when_letters_cannot_be_buried() -> None:
    group = GroupHandle(StreamHandle("s", set()), "g", "m", GroupOptions(dead_letters=True))
    entry = [b"0-1", [b"k", b"t", b"v", b"v", b"t", b"5"]]
    reply = {"hw_group_read": [[1, 1, 1], [], [entry], b"1", 0, 1, -1, 1, b"", 0]}
    for fault in (GONE, UnreadableNode("it is broken")):
        taken = finish(grouping.read(group, 1, None, 1000, None), reply, fault)
        assert taken.messages[0].value == b"v"


# ── Which server has a key: learned, and corrected by redirections ───────────────────────────────


SLOT = key_slot(b"hw:s:{a}")
TABLE = [
    [0, SLOT - 1, [b"h", 1, b"id"], [b"h", 11, b"id"]],
    [SLOT, SLOT, [b"h", 2, b"id"]],
    [SLOT + 1, 16383, [b"", 3, b"id"]],
]


def learned() -> SlotMap:
    slots = SlotMap((("seed", 9),))
    slots.learn(TABLE, ("asked", 3))
    return slots


def test_a_table_says_who_has_a_key() -> None:
    slots = learned()
    assert slots.owner("hw:s:{a}") == slots.owner("hw:s:{a}:tail") == ("h", 2)
    assert slots.primaries() == [("h", 1), ("h", 2), ("asked", 3)], "who names nobody was asked"


def test_a_move_is_remembered_and_an_ask_is_not() -> None:
    slots = learned()
    assert slots.redirect(AskError(f"{SLOT} h:3"), ("h", 2), moved=False) == ("h", 3)
    assert slots.owner("hw:s:{a}") == ("h", 2)
    assert not slots.stale
    assert slots.redirect(MovedError(f"{SLOT} :3"), ("h", 2), moved=True) == ("h", 3)
    assert slots.owner("hw:s:{a}") == ("h", 3)
    assert slots.stale


def test_a_slot_that_nobody_has_is_a_cluster_that_is_down() -> None:
    slots = SlotMap((("seed", 9),))
    assert slots.stale
    with pytest.raises(ClusterDownError):
        slots.owner("hw:s:{a}")


def test_servers_to_learn_from_take_turns_and_include_replicas() -> None:
    slots = learned()
    rounds = [slots.candidates() for _ in range(5)]
    assert {node for (node, *_) in rounds} == set(rounds[0])
    assert set(rounds[0]) == {("seed", 9), ("h", 1), ("h", 11), ("h", 2), ("asked", 3)}
