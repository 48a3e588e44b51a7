"""What a failed call means: never an error that hides a write, never a repeat that could be one."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import redis
from redis._parsers.base import BaseParser

from headwater.errors import (
    AccessDenied,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
    TooManyClients,
)
from headwater.store import faults
from headwater.store.call import Call, Wait
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
        (
            "MASTERDOWN Link with MASTER is down.",
            "renew",
        ),
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
