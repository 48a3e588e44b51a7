"""What `headwater spark status` and `headwater spark forget` promise; neither needs Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headwater
from headwater.spark.queries.notes import NotedQuery, Part, note
from tests.support.commands import StreamCommands, run
from tests.support.entries import entries
from tests.support.stagings import table


def test_queries_are_shown_with_what_waits_for_them_and_forgotten(
    hw_stream: StreamCommands, tmp_path: Path
) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    query, name = f"id-{stream.name}", f"nightly-{stream.name}"
    stream.write_many(entries(10))
    here = tmp_path / "checkpoint"
    here.mkdir()

    def shown() -> dict[str, Any]:
        rows = run(url, "spark", "status", "--json").rows
        row: dict[str, Any] = next(row for row in rows if row["query"] == query)
        return row

    def noted(part: Part, facts: NotedQuery) -> None:
        with headwater.connect(url) as hw:
            hw.store.run(note(query, part, stream.name, facts))

    noted("read", NotedQuery(name, 3, {stream.name: 2}, "run"))
    noted("write", NotedQuery(name, 3, checkpoint=here.as_uri()))
    row = shown()
    assert (row["name"], row["state"], row["epoch"]) == (name, "running", 3)
    assert (row["lag"], row["writes"], row["staged_bytes"]) == (9, [stream.name], 0)
    staging = f"spark-{query}-0-attempt"
    stream.stage(table(entries(5)), staging)
    stream.stage(table(entries(5)), "of-somebody-else")
    assert 0 < shown()["staged_bytes"] < 10_000
    stream.unstage(staging)
    assert shown()["staged_bytes"] == 0
    noted("beat", NotedQuery(next={stream.name: 8}))
    row = shown()
    (position,) = row["reads"]
    assert (position["stream"], position["next"], position["lag"]) == (stream.name, 8, 3)
    assert row["lag_ms"] == position["lag_ms"] >= 0
    stream.evict(9)
    assert shown()["lag"] == 1
    here.rmdir()
    line = next(line for line in run(url, "spark", "status").out.splitlines() if name in line)
    assert "checkpoint gone" in line
    assert shown()["lag"] == 0
    noted("beat", NotedQuery(next={stream.name: 9}, ended=True))
    assert (shown()["state"], shown()["lag"], shown()["lag_ms"]) == ("ended", 0, 0)
    assert run(url, "spark", "forget", name).out == f"forgot {name}\n"
    answer = run(url, "spark", "forget", name)
    assert (answer.code, f"there is no query {name!r}" in answer.err) == (1, True)


def test_the_runs_of_a_query_are_one_row_and_what_has_ended_does_not_lag(
    hw_stream: StreamCommands, tmp_path: Path
) -> None:
    stream, url = hw_stream.stream, hw_stream.url
    stream.write_many(entries(10))
    name = f"hourly-{stream.name}"

    def noted(query: str, name: str, checkpoint: str = "", *, ended: bool = True) -> None:
        facts = NotedQuery(name, 3, {stream.name: 2}, "run", checkpoint, end={stream.name: 11})
        with headwater.connect(url) as hw:
            hw.store.run(note(f"{query}-{stream.name}", "read", stream.name, facts))
            beat = NotedQuery(next={stream.name: 2}, ended=ended)
            hw.store.run(note(f"{query}-{stream.name}", "beat", stream.name, beat))

    def shown() -> dict[str, tuple[str, int]]:
        rows = run(url, "spark", "status", "--json").rows
        own = [row for row in rows if row["query"].endswith(stream.name)]
        return {row["query"].split("-")[0]: (row["state"], row["lag"]) for row in own}

    # Each run has a checkpoint that goes with it.
    for number in range(3):
        noted(f"run{number}", name, str(tmp_path / f"run{number}"))
    assert shown() == {"run2": ("ended", 0)}
    noted("run3", name, str(tmp_path / "run3"), ended=False)
    assert shown() == {"run3": ("checkpoint gone", 0)}
    noted("other", "")
    assert shown() == {"run3": ("checkpoint gone", 0), "other": ("ended", 0)}
    # Those whose checkpoints are there can go on: they are queries of their own.
    for query in ("kept", "running"):
        (tmp_path / query).mkdir()
        noted(query, name, str(tmp_path / query), ended=query == "kept")
    found = {"kept": ("ended", 0), "running": ("running", 9), "other": ("ended", 0)}
    assert shown() == found
    for query in [*found]:
        assert run(url, "spark", "forget", f"{query}-{stream.name}").code == 0
        del found[query]
        assert shown() == found, "its runs are forgotten with it"
