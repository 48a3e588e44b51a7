"""What the commands promise that list streams and keep them in bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import StreamCommands, run
from tests.support.stores import Stores


def test_all_streams_are_listed(hw_stream: StreamCommands) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    stream.write_many([("tag", b"value")] * 3)
    rows = {row["name"]: row for row in run(url, "stream", "list", "--json").rows}
    assert rows[stream.name]["length"] == 3
    table = run(url, "stream", "list").out
    assert any(line.split()[:4] == [stream.name, "1", "3", "3"] for line in table.splitlines())


def test_a_store_without_streams_says_so(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/store"
    assert run(url, "stream", "list", "--json") == (0, "", "")
    assert run(url, "stream", "list").out.startswith("no streams")
    assert run(url, "stream", "groups").out.startswith("no groups")


def test_info_tells_how_a_stream_stands(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"value")] * 3)
    stream.retain(max_count=100)
    stream.register_reader("outside", 2)
    stream.group("g").read(1)
    facts = hw_stream("info", "--json").row
    assert (facts["first"], facts["last"], facts["length"]) == (1, 3, 3)
    assert facts["retention"] == {
        "max_count": 100,
        "max_age_ms": None,
        "max_bytes": None,
        "max_idle_ms": None,
    }
    assert (facts["readers"], facts["groups"]) == ({"outside": 2}, ["g"])
    shown = dict(line.split(maxsplit=1) for line in hw_stream("info").out.splitlines())
    assert shown["offsets"].strip() == "1-3"
    assert shown["readers"].strip() == "outside at 2"


def test_eviction_is_up_to_an_offset_or_down_to_a_number(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"value")] * 30)
    assert hw_stream("evict", "10", "--yes").out == "evicted 10 messages; the first is now 11\n"
    answer = hw_stream("evict", "--keep", "5", "--yes", "--json")
    assert answer.row == {"stream": stream.name, "evicted": 15}
    assert hw_stream("evict").code == 2
    assert hw_stream("evict", "3", "--keep", "5").code == 2
    assert hw_stream("evict", "--keep", "0").code == 2


def test_retention_is_shown_set_applied_and_lifted(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write_many([("tag", b"value")] * 30)
    assert hw_stream("retain").out == "everything is kept\n"
    assert hw_stream("retain", "--max-count", "20").out == "max_count 20: evicted 10 messages\n"
    stream.group("slow", start=11).read(0)
    stream.write_many([("tag", b"value")] * 5)
    applied = hw_stream("retain", "--apply")
    assert applied.out == "max_count 20: evicted 0 messages; 5 held for slow\n"
    forced = hw_stream("retain", "--apply", "--force", "--json").row
    assert (forced["evicted"], forced["held"], forced["held_by"]) == (5, 0, None)
    hw_stream("retain", "--max-age", "7d", "--max-bytes", "2GiB")
    assert hw_stream("retain", "--json").row == {
        "stream": stream.name,
        "max_count": None,
        "max_age_ms": 604_800_000,
        "max_bytes": 2**31,
        "max_idle_ms": None,
    }
    assert hw_stream("retain", "--forever").out == "everything is kept: evicted 0 messages\n"
    assert hw_stream("retain").out == "everything is kept\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--max-age", "soon"),
        ("--max-bytes", "2XB"),
        ("--max-count", "-1"),
        ("--force",),
        ("--apply", "--forever"),
        ("--max-count", "1", "--apply"),
    ],
)
def test_a_retention_that_cannot_be_meant_is_bad_usage(
    hw_stream: StreamCommands, words: tuple[str, ...]
) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    assert hw_stream("retain", *words).code == 2


def test_deletion_asks_first(hw_stream: StreamCommands) -> None:
    stream = hw_stream.stream
    stream.write("tag", b"value")
    for answer in (hw_stream("delete", stdin="n\n"), hw_stream("delete", stdin="")):
        assert answer.code == 1
        assert f"Delete {stream.name} with 1 message and 0 groups?" in answer.err
    assert stream.info().exists
    assert hw_stream("delete", stdin="y\n").code == 0
    assert not stream.info().exists
    stream.write("tag", b"value")
    assert hw_stream("delete", "--yes", "--json").row == {"stream": stream.name, "deleted": True}
    assert not stream.info().exists


@pytest.mark.cluster
def test_streams_of_a_cluster_are_all_listed(stores: Stores, name: str) -> None:
    url = stores.url("cluster")
    names = [f"{name}-{n}" for n in range(5)]
    for one in names:
        assert run(url, "stream", "write", one, "tag", "value").out == "1\n"
    assert set(names) <= {row["name"] for row in run(url, "stream", "list", "--json").rows}
