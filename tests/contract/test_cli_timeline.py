"""``headwater timeline``: what its commands do and print, in tables and in JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.timeline import Operation, State
from tests.support.commands import Answer, run
from tests.support.farms import Replica, one_each, replicas
from tests.support.servers import Server
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def three(server: Server) -> list[Replica]:
    return replicas(server, 3)


@pytest.fixture
def farm(three: list[Replica]) -> str:
    return one_each(three)


def timeline(farm: str, command: str, *words: str, stdin: bytes | None = None) -> Answer:
    return run(None, "timeline", command, "--instances", farm, *words, stdin=stdin)


def test_members_are_inserted_selected_and_deleted(farm: str) -> None:
    assert timeline(farm, "insert", "ada", "a", "b", "--score", "5").out == "2 applied\n"
    assert timeline(farm, "insert", "ada", "a", "--score", "4", "--json").row == {
        "applied": 0,
        "unchanged": 1,
        "rejected": 0,
        "trimmed": 0,
        "forgotten": 0,
    }
    rows = timeline(farm, "select", "ada", "eve", "--json").rows
    assert [(row["key"], row["score"], row["member"]) for row in rows] == [
        ("ada", 5, "b"),
        ("ada", 5, "a"),
    ]
    table = timeline(farm, "select", "ada").out
    assert all(word in table for word in ("member", "cursor", "ada"))
    start = rows[0]["cursor"]
    assert [
        r["member"] for r in timeline(farm, "select", "ada", "--start", start, "--json").rows
    ] == ["a"]
    assert timeline(farm, "select", "ada", "--offset", "1", "--start", start).code == 1
    assert timeline(farm, "delete", "ada", "a", "b", "--score", "5").out == "2 applied\n"
    assert timeline(farm, "select", "ada").out == "no records\n"
    assert timeline(farm, "score", "ada", "a").out == "deleted at 5.0\n"
    assert timeline(farm, "score", "ada", "nobody", "--json").row["score"] is None
    now = timeline(farm, "insert", "ada", "a")
    assert now.out == "1 applied\n"
    assert timeline(farm, "select", "ada", "--json").row["score"] > 1.7e12


def test_what_select_prints_can_be_inserted_again(farm: str) -> None:
    odd = base64.b64encode(b"\xff").decode()
    lines = [
        {"key": "ada", "score": 1.5, "member": odd, "member_encoding": "base64"},
        {"key": "bob", "score": -2, "member": "x", "cursor": "ignored"},
    ]
    stdin = "\n".join(map(json.dumps, lines)).encode()
    assert timeline(farm, "insert", stdin=stdin).out == "2 applied\n"
    shown = timeline(farm, "select", "ada", "bob", "--json")
    assert shown.rows[0]["member_encoding"] == "base64"
    assert timeline(farm, "insert", stdin=shown.out.encode()).out == "2 unchanged\n"
    assert timeline(farm, "delete", stdin=b"nonsense\n").code == 1
    assert timeline(farm, "insert", "ada").code == 1


def test_status_tells_who_serves_and_who_is_behind(farm: str, three: list[Replica]) -> None:
    timeline(farm, "insert", "ada", "a", "b", "--score", "5")
    three[1].client.flushdb()
    rows = timeline(farm, "status", "--json").rows
    assert [(row["cluster"], row["up"], row["keys"], row["behind"]) for row in rows] == [
        (1, True, 1, 0),
        (2, True, 0, 2),
        (3, True, 1, 0),
    ]
    assert "behind" in timeline(farm, "status").out
    away = timeline(f"{three[0].url};127.0.0.1:1", "status", "--sample", "0")
    assert away.code == 1
    assert "down" in away.out
    assert "127.0.0.1:1" in away.err


def test_a_walk_tells_what_it_did(farm: str, three: list[Replica], tmp_path: Path) -> None:
    timeline(farm, "insert", "ada", "a", "b", "--score", "5")
    three[1].client.flushdb()
    state = str(tmp_path / "state")
    walked = timeline(farm, "walk", "--once", "--state", state)
    assert walked.code == 0
    assert walked.out == (
        "compared 1 timelines with 2 elements: 2 differed, 2 written, 0 failures\n"
    )
    assert timeline(farm, "walk", "--once", "--json").row == {
        "keys": 1,
        "elements": 2,
        "differing": 0,
        "written": 0,
        "failures": 0,
        "trimmed": 0,
        "forgotten": 0,
        "unscanned": [],
        "whole": True,
    }
    away = timeline(f"{farm};127.0.0.1:1", "walk", "--once")
    assert away.code == 1
    assert "could not be walked" in away.err


@pytest.mark.parametrize("words", [["--once"], ["--once", "--json"], []])
def test_a_walk_on_a_dead_farm_is_one_error_that_names_the_instances(words: list[str]) -> None:
    walked = timeline("127.0.0.1:1,127.0.0.1:2;127.0.0.1:3", "walk", *words)
    assert (walked.code, walked.out) == (1, "")
    assert walked.err.startswith("error: no instance of the farm is available (cluster 1 redis://")
    assert walked.err.count("\n") == 1
    assert all(f"127.0.0.1:{port}" in walked.err for port in (1, 2, 3))


def test_a_walk_of_a_farm_that_is_dead_in_part_names_what_was_not_walked(
    farm: str, three: list[Replica]
) -> None:
    timeline(farm, "insert", "ada", "a", "--score", "5")
    three[1].client.flushdb()
    walked = timeline(f"{farm};127.0.0.1:1", "walk", "--once", "--json")
    assert walked.code == 1
    assert walked.row == {
        "keys": 1,
        "elements": 1,
        "differing": 1,
        "written": 1,
        "failures": 1,
        "trimmed": 0,
        "forgotten": 0,
        "unscanned": ["4 redis://127.0.0.1:1"],
        "whole": False,
    }
    assert "cluster 4 redis://127.0.0.1:1 could not be walked" in walked.err


def test_a_walk_prints_what_it_trimmed_and_forgot(farm: str, three: list[Replica]) -> None:
    for replica in three:
        replica.client.zadd("ada+", {"a": 1, "b": 2, "c": 3, "d": 4})
    sizes = ["--max-size", "1", "--keep", "2"]
    assert timeline(farm, "walk", "--once", *sizes).out == (
        "compared 1 timelines with 2 elements: 0 differed, 0 written, 6 trimmed, 0 failures\n"
    )
    assert timeline(farm, "walk", "--once", *sizes, "--horizon", "4").out == (
        "compared 1 timelines with 1 elements: 0 differed, 0 written, 3 forgotten, 0 failures\n"
    )
    assert timeline(farm, "select", "ada", "--json").rows[0]["member"] == "d"


def test_a_score_that_would_be_rounded_is_refused_in_every_option_and_line(farm: str) -> None:
    score = "1700000000123456789.0"
    line = f'{{"key": "ada", "score": {score}, "member": "a"}}\n'.encode()
    for refused in (
        timeline(farm, "insert", "ada", "a", "--score", score),
        timeline(farm, "insert", stdin=line),
        timeline(farm, "select", "ada", "--horizon", score),
    ):
        assert (refused.code, refused.out) == (1, "")
        assert "would be rounded" in refused.err
    assert "must be a number" in timeline(farm, "delete", "ada", "a", "--score", "1.7e18+1").err


def test_a_farm_that_was_emptied_is_rebuilt_from_a_log(
    farm: str, three: list[Replica], stores: Stores, name: str
) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        hw.stream(name).write_many(
            ("t", json.dumps({"key": "ada", "score": n, "member": f"m{n % 5}"})) for n in range(20)
        )
        odd = {"key": "/w==", "key_encoding": "base64", "score": 1, "member": "x"}
        gone = {"key": "ada", "score": 99, "member": "m0", "deleted": True}
        hw.stream(name).write("t", json.dumps([odd, gone]))
    words = ["timeline", "rebuild", name, "--instances", farm, "--store", url]
    first = run(None, *words)
    assert first.code == 0
    assert first.out.startswith(f"{name}: 21 messages, ")
    before = [replica.states(b"ada") for replica in three]
    assert sorted(before[0]) == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert before[0][b"m0"] == State(99, True)
    assert three[0].states(b"\xff") == {b"x": State(1, False)}
    for replica in three:
        replica.client.flushdb()
    again = run(None, *words, "--json").row
    assert (again["stream"], again["messages"]) == (name, 21)
    assert [replica.states(b"ada") for replica in three] == before
    assert run(None, *words, "--from", "21").out.startswith(f"{name}: 1 messages, ")
    assert run(None, *words, "--reader", "nowhere:nothing").code == 1
    with headwater.connect(url) as hw:
        hw.stream(name).write("t", b"no operations")
    broken = run(None, *words, "--from", "22")
    assert broken.code == 1
    assert "continue there with --from 22" in broken.err
    own = "tests.contract.test_cli_timeline:by_tag"
    assert run(None, *words, "--from", "22", "--reader", own).out.endswith("1 applied\n")
    assert three[0].states(b"t") == {b"no operations": State(22, False)}


def by_tag(message: headwater.Message) -> list[Operation]:
    return [Operation(message.tag, message.offset, message.value)]
