"""`headwater scrub` and `headwater repair`: what they print, change and exit with."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headwater import Headwater
from headwater.log.keys import stream_key
from headwater.store import rights
from headwater.store.scrubbing import RIGHTS
from tests.support.commands import PROGRAM, run
from tests.support.doctor import examine, found, grant, verdicts
from tests.support.entries import entries
from tests.support.servers import Server, until
from tests.support.traffic import use_queue, use_stream


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


def break_bytes(server: Server, name: str) -> None:
    with server.client() as raw:
        raw.hincrby(stream_key(name), "bytes", 5)


def break_node(server: Server, name: str) -> None:
    with server.client() as raw:
        raw.hset(f"{stream_key(name)}:nodes", "3001", b"HW what is this")


def test_a_sound_store_exits_with_0(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
    answer = run(server.url, "scrub")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("sound: 1 objects, ")
    row = run(server.url, "scrub", "--json").row
    assert (row["objects"], row["complete"], row["defects"], row["store"]) == (
        1,
        True,
        [],
        server.url,
    )


def test_defects_are_printed_with_their_place_and_exit_with_3(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
        use_queue(hw, "jobs")
    break_bytes(server, "rides")
    answer = run(server.url, "scrub")
    assert answer.code == 3
    assert "stream rides   field bytes" in answer.out
    assert answer.out.splitlines()[-1].startswith("1 defects: ")
    assert run(server.url, "scrub", "--kind", "queue").code == 0
    assert run(server.url, "scrub", "jobs").code == 0
    (defect,) = run(server.url, "scrub", "rides", "--json").row["defects"]
    assert (defect["kind"], defect["place"], defect["repairable"]) == (
        "stream",
        "field bytes",
        True,
    )


def test_a_repair_shows_what_it_would_do_and_does_it_with_yes(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
    break_bytes(server, "rides")
    dry = run(server.url, "repair")
    assert dry.code == 3
    assert dry.out.startswith("would repair stream rides, field bytes: sets bytes to ")
    assert dry.out.splitlines()[-1] == "1 defects are left; --yes repairs"
    assert run(server.url, "scrub").code == 3
    done = run(server.url, "repair", "--yes")
    assert done.code == 0
    assert done.out.startswith("repaired stream rides, field bytes: sets bytes to ")
    assert run(server.url, "scrub").code == 0
    row = run(server.url, "repair", "--json").row
    assert (row["dry_run"], row["repaired"], row["left"]) == (True, [], [])


def test_what_cannot_be_repaired_is_named_with_the_ways_out(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
    break_node(server, "rides")
    answer = run(server.url, "repair", "--yes")
    assert answer.code == 3
    assert "node 3001-3600" in answer.out
    assert "restore it from an archive or a backup, or evict it" in answer.out


def test_an_interrupted_scrub_reports_what_it_has_seen(server: Server) -> None:
    with Headwater(server.url) as hw:
        for at in range(40):
            hw.stream(f"s{at}").write_many(entries(2000))
    words = [str(PROGRAM), "scrub", "--rate", "0.05", "--store", server.url]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running,
        server.client() as raw,
    ):
        before = _reads(raw)
        until(lambda: _reads(raw) > before + 30)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
        assert running.returncode == 130
        assert b"stopped before the end" in out


def _reads(raw: redis.Redis) -> int:
    stats: Any = raw.info("commandstats")
    return int(stats.get("cmdstat_fcall_ro", {}).get("calls", 0))


def test_the_doctor_says_when_the_store_was_scrubbed_and_what_was_found(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
        assert found(examine(server.url)[1], "scrub").startswith("no run over all")
        hw.scrub("rides")
        assert found(examine(server.url)[1], "scrub").startswith("no run over all")
        hw.scrub()
        assert "Z: sound" in found(examine(server.url)[1], "scrub")
        break_bytes(server, "rides")
        hw.scrub()
        report = examine(server.url)[1]
        assert verdicts(report)["scrub"] == "warn"
        assert "1 defects; headwater scrub shows them" in found(report, "scrub")
        hw.repair(dry_run=False)
        assert "Z: sound" in found(examine(server.url)[1], "scrub")


def test_a_user_without_the_rights_to_look_is_told_so(server: Server) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
        use_queue(hw, "jobs")
    url = grant(server, *rights.rules(cluster=False).split())
    answer = run(url, "scrub")
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert "the user may not run " in answer.err
    assert "grant what a scrub needs: +exists +hkeys" in answer.err
    further = [f"+{command}" for command in RIGHTS]
    url = grant(server, *rights.rules(cluster=False).split(), *further)
    assert run(url, "scrub").code == 0


@pytest.mark.parametrize("command", ["scrub", "repair"])
def test_a_name_that_nothing_has_is_refused_instead_of_called_sound(
    server: Server, command: str
) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, "rides")
        use_queue(hw, "jobs")
        hw.ick("dirty").add({"row-1": 1.0})
    assert run(server.url, command, "rides", "jobs", "dirty").code == 0
    for words in (["rides", "rdes"], ["rdes"]):
        answer = run(server.url, command, *words)
        assert (answer.code, answer.out) == (1, "")
        assert answer.err == "error: the store has no object 'rdes'; check the name\n"
    answer = run(server.url, command, "rides", "--kind", "queue")
    assert answer.code == 1
    assert answer.err == "error: the store has no queue 'rides'; check the name\n"
