"""``headwater ick``: what its commands do and print, in tables and in JSON."""

from __future__ import annotations

import base64
import json
import secrets

import pytest

from tests.support.commands import Answer, run
from tests.support.stores import Stores


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


def ick(url: str, *words: str, stdin: bytes | str | None = None) -> Answer:
    return run(url, "ick", *words, stdin=stdin)


def channel(url: str, *words: str, stdin: bytes | str | None = None) -> Answer:
    return run(url, "ick", "channel", *words, stdin=stdin)


def test_an_ick_is_filled_worked_off_and_deleted(url: str, name: str) -> None:
    assert ick(url, "add", name, "a", "b", "--score", "5").out == "2 new, 0 lowered\n"
    assert ick(url, "add", name, "a", "--score", "2.5", "--json").row == {
        "key": name,
        "new": 0,
        "lowered": 1,
    }
    assert ick(url, "add", name, "--score", "7", stdin=b"c\n\xff\xfe\n").out.startswith("2 new")
    assert ick(url, "reserve", name, "-c", "2", "--json").rows == [
        {"member": "a", "score": 2.5},
        {"member": "b", "score": 5.0},
    ]
    assert "2.5" in ick(url, "reserve", name, "-c", "2").out
    assert ick(url, "commit", name, "a", "zz").out == "committed 1 member\n"
    assert ick(url, "exchange", name, "b", "-c", "9", "--json").rows == [
        {"member": "c", "score": 7.0},
        {"member": base64.b64encode(b"\xff\xfe").decode(), "encoding": "base64", "score": 7.0},
    ]
    facts = ick(url, "stats", name, "--json").row
    assert (facts["key"], facts["cset_size"], facts["pset_size"]) == (name, 2, 0)
    assert "cset_size" in ick(url, "stats", name).out
    listed = ick(url, "list", name, "--json").rows
    assert {(row["member"], row["place"]) for row in listed} >= {("c", "cset")}
    assert len(ick(url, "list", name, "-c", "1", "--json").rows) == 1
    assert "cset" in ick(url, "list", name).out
    assert run(url, "ick", "delete", name, stdin="n\n").code == 1
    assert ick(url, "delete", name, "--yes").out == f"deleted {name}\n"
    assert ick(url, "add", name, "a").code == 0
    assert ick(url, "delete", name, "--yes", "--json").row == {"key": name, "deleted": 2}


def test_what_was_never_added_to_is_taken_for_a_typing_error(url: str, name: str) -> None:
    for words in (["reserve"], ["commit", "a"], ["exchange"], ["stats"], ["list"], ["delete"]):
        answer = ick(url, words[0], name, *words[1:])
        assert (answer.code, answer.out) == (1, "")
        assert f"no dirty list '{name}'" in answer.err
    for word in ("reserve", "commit", "release", "renew", "consumers", "stats", "members"):
        answer = channel(url, word, name)
        assert (answer.code, answer.out) == (1, "")
    assert run(url, "stream", "write", name, "t", "v").code == 0
    answer = ick(url, "add", f"hw:s:{{{name}}}", "a")
    assert (answer.code, answer.out) == (1, "")
    assert "holds a hash" in answer.err


def test_a_channel_is_worked_off_by_batches(url: str, name: str) -> None:
    assert channel(url, "add", name, "a", "b", "c", "--score", "1", "--shards", "1").code == 0
    later = channel(url, "add", name, "x", "--not-before", "2999-01-01T00:00:00Z", "--json")
    assert later.row == {"channel": name, "new": 1, "lowered": 0}
    taken = channel(
        url, "reserve", name, "-c", "2", "--consumer", "me", "--ack-ms", "3600000", "--json"
    )
    batch = taken.row
    assert (batch["channel"], batch["shard"]) == (name, 0)
    assert batch["token"] > 0
    assert [row["member"] for row in batch["reserved"]] == ["a", "b"]
    assert channel(url, "reserve", name, "--json").out == "", "somebody holds the only shard"
    assert "others hold it" in channel(url, "reserve", name).out
    (lease,) = channel(url, "consumers", name, "--json").rows
    assert (lease["consumer"], lease["reserved"], lease["token"]) == ("me", 2, batch["token"])
    assert "me" in channel(url, "consumers", name).out
    facts = channel(url, "stats", name, "--json").row
    assert (facts["ready"], facts["later"], facts["reserved"]) == (1, 1, 2)
    assert facts["shards"][0]["lease"]["consumer"] == "me"
    assert "me" in channel(url, "stats", name).out
    text = json.dumps(batch)
    assert channel(url, "commit", name, "a", stdin=text).out == "committed 1 member\n"
    renewed = channel(url, "renew", name, "--ack-ms", "7200000", "--json", stdin=text).row
    assert renewed["until_ms"] > batch["until_ms"]
    assert (
        channel(url, "release", name, "--delay-ms", "3600000", stdin=text).out
        == "released 1 member\n"
    )
    assert channel(url, "commit", name, "--json", stdin=text).row["committed"] == 0
    assert channel(url, "consumers", name).out == "nobody holds a shard\n"
    places = {row["member"]: row["place"] for row in channel(url, "members", name, "--json").rows}
    assert places == {"b": "later", "c": "ready", "x": "later"}
    assert "ready" in channel(url, "members", name).out
    assert channel(url, "delete", name, "--yes").out == f"deleted {name}\n"


def test_a_stale_batch_and_nonsense_are_refused_in_one_line(url: str, name: str) -> None:
    channel(url, "add", name, "a", "--shards", "1")
    old = channel(url, "reserve", name, "--ack-ms", "1", "--json").out
    while not (new := channel(url, "reserve", name, "--consumer", "other", "--json").out):
        pass
    answer = channel(url, "commit", name, stdin=old)
    assert answer.code == 1
    assert "'other' holds it now" in answer.err
    for nonsense in ("", "{}", "[]", "5", '{"reserved": 1}', '{"reserved": [{}]}', "x"):
        answer = channel(url, "commit", name, stdin=nonsense + "\n")
        assert answer.code == 1
        assert "error: " in answer.err
    assert channel(url, "commit", name, stdin=new).out == "committed 1 member\n"
    assert channel(url, "add", name, "a", "--not-before", "first").code == 2
    assert channel(url, "reserve", name, "--ack-ms", "soon").code == 2


def test_shards_are_changed(url: str, name: str) -> None:
    channel(url, "add", name, "--shards", "2", stdin="\n".join(map(str, range(50))))
    batch = channel(url, "reserve", name, "--json").out
    assert channel(url, "shards", name, "5", "--json").row == {
        "channel": name,
        "shards": 5,
        "settled": False,
        "leases": 1,
    }
    assert channel(url, "shards", name, "5").out == "5 shards, 1 lease to wait for\n"
    assert channel(url, "commit", name, stdin=batch).code == 0
    kept = run(url, "keep", "--once")
    assert f"{name}: finished 1 change of the number of shards" in kept.out
    rows = {row["channel"]: row for row in channel(url, "list", "--json").rows}
    assert rows[name]["shards"] == 5
    assert name in channel(url, "list").out
    assert channel(url, "shards", f"none-{secrets.token_hex(3)}", "5").code == 1
