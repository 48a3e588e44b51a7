"""Queues by command: every verb, for people and for programs."""

from __future__ import annotations

import pytest

from tests.support.commands import run
from tests.support.stores import Stores


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


def test_a_message_goes_in_and_out(url: str, name: str) -> None:
    pushed = run(url, "queue", "push", name, "a", "b", "--json").rows
    assert [row["queue"] for row in pushed] == [name, name]
    first = run(url, "queue", "pop", name, "--json").row
    assert first == {"id": pushed[0]["id"], "value": "a", "attempt": 1, "receipt": None}
    taken = run(url, "queue", "pop", name, "--ack-ms", "60000", "--json").row
    assert run(url, "queue", "stats", name, "--json").row["unacked"] == 1
    acked = run(url, "queue", "ack", name, taken["receipt"], "--json").row
    assert acked == {"queue": name, "acked": 1}
    assert run(url, "queue", "ack", name, taken["receipt"]).out == "acknowledged 0 messages\n"
    nothing = run(url, "queue", "pop", name)
    assert (nothing.out, nothing.err) == ("", "nothing to pop\n")
    assert "not a receipt" in run(url, "queue", "ack", name, "x").err


def test_lines_are_messages(url: str, name: str) -> None:
    told = run(url, "queue", "push", name, "--batch", "2", stdin=b"a\nb\n\xff\n")
    assert told.out == "pushed 3 messages\n"
    rows = run(url, "queue", "peek", name, "--json").rows
    assert [row["value"] for row in rows] == ["a", "b", "/w=="]
    assert rows[2]["encoding"] == "base64"
    assert run(url, "queue", "push", name, "--json", stdin=b"").row["pushed"] == 0


def test_headers_are_pushed_with_every_message_and_shown_as_json(url: str, name: str) -> None:
    run(url, "queue", "push", name, "a", "b", "--header", "k=v")
    run(url, "queue", "push", name, "--header", "l=w", stdin=b"c\n")
    assert [row["headers"] for row in run(url, "queue", "peek", name, "--json").rows] == [
        {"k": "v"}, {"k": "v"}, {"l": "w"}
    ]  # fmt: skip
    peeked = run(url, "queue", "peek", name).out.splitlines()
    assert peeked[0].split()[-2:] == ["headers", "value"]
    assert [line.split()[-2:] for line in peeked[2:]] == [["k=v", "a"], ["k=v", "b"], ["l=w", "c"]]
    assert run(url, "queue", "pop", name, "--json").row["headers"] == {"k": "v"}
    popped = run(url, "queue", "pop", name, "--ack-ms", "1").out.splitlines()
    assert (popped[0].split()[-2:], popped[2].split()[-2:]) == (["headers", "value"], ["k=v", "b"])


def test_options_of_push_do_what_they_say(url: str, name: str) -> None:
    run(url, "queue", "push", name, "late", "--delay-ms", "600000", "--ttl-ms", "900000")
    run(url, "queue", "push", name, "low", "--priority", "-1")
    first = run(url, "queue", "push", name, "once", "--dedupe", "k").out
    assert run(url, "queue", "push", name, "twice", "--dedupe", "k").out == first
    assert run(url, "queue", "push", name, "a", "b", "--dedupe", "k").code == 2
    ready = run(url, "queue", "peek", name, "--json").rows
    assert [(row["value"], row["priority"]) for row in ready] == [("once", 0), ("low", -1)]
    (late,) = run(url, "queue", "peek", name, "--state", "delayed", "--json").rows
    assert late["expires_ms"] - late["due_ms"] == 300_000
    assert "once" in run(url, "queue", "pop", name, "-c", "5", "--ack-ms", "60000").out
    shown = run(url, "queue", "list").out
    assert name in shown


def test_dead_letters_are_shown_brought_back_and_discarded(url: str, name: str) -> None:
    settings = run(url, "queue", "configure", name, "--max-attempts", "1", "--json").row
    assert settings["max_attempts"] == 1
    run(url, "queue", "push", name, "a", "b", "c")
    receipts = [
        row["receipt"]
        for row in run(url, "queue", "pop", name, "-c", "3", "--ack-ms", "60000", "--json").rows
    ]
    assert run(url, "queue", "nack", name, *receipts).out == "returned 3 messages\n"
    letters = run(url, "queue", "dead", name, "--json").rows
    assert [letter["value"] for letter in letters] == ["a", "b", "c"]
    assert "given up" in run(url, "queue", "dead", name).out
    redriven = run(url, "queue", "redrive", name, letters[1]["id"], "--json").row
    assert redriven == {"queue": name, "redriven": 1}
    assert run(url, "queue", "discard", name, letters[0]["id"]).out == "discarded: 1\n"
    assert run(url, "queue", "redrive", name, "--error", "timeout").out == "redriven: 0\n"
    assert (
        run(url, "queue", "redrive", name, "--min-attempts", "1", "--rate", "9").out
        == "redriven: 1\n"
    )
    values = [row["value"] for row in run(url, "queue", "pop", name, "-c", "9", "--json").rows]
    assert values == ["b", "c"]


def test_a_queue_is_paused_purged_and_deleted(url: str, name: str) -> None:
    name = f"{'ü' * 40}{name}"  # like no other, so that no other is suggested
    run(url, "queue", "push", name, "a")
    assert run(url, "queue", "pause", name).out == "paused\n"
    assert run(url, "queue", "pause", name).out == "paused already\n"
    popped = run(url, "queue", "pop", name)
    assert (popped.out, popped.err) == ("", "nothing to pop: the queue is paused\n")
    assert "paused" in run(url, "queue", "stats", name).out
    resumed = run(url, "queue", "resume", name, "--json").row
    assert resumed == {"queue": name, "changed": True}
    assert run(url, "queue", "purge", name, "--yes", "--json").row == {"queue": name, "purged": 1}
    idle = run(url, "queue", "configure", name, "--backoff-ms", "5s")
    assert idle.out == "attempts: no limit; back-off: none\n"
    told = run(url, "queue", "configure", name, "--backoff", "exponential", "--backoff-ms", "5ms")
    assert "exponential" in told.out
    assert "exponential, 5 ms up to" in run(url, "queue", "stats", name).out
    assert run(url, "queue", "delete", name, "--yes").out == f"deleted {name}\n"
    for verb in ("stats", "peek", "pop", "dead", "pause", "resume", "purge", "delete"):
        refused = run(url, "queue", verb, name)
        assert refused.code == 1
        assert (
            refused.err
            == f"error: there is no queue {name!r}; push to it first or check the name\n"
        )


def test_the_housekeeper_tells_what_it_did_to_queues(url: str, name: str) -> None:
    run(url, "queue", "push", name, "a", "b")
    run(url, "queue", "pop", name, "-c", "2", "--ack-ms", "1")
    told = run(url, "keep", "--once", "--queue", name)
    assert told.out == f"{name}: redelivers 2 messages, not acknowledged in time\n"
    assert run(url, "keep", "--once", "--queue", name, "--json").out == ""
