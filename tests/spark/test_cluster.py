"""The same on a real cluster, by spark-submit, in a session that nobody prepared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

import headwater
from headwater import Stream
from tests.support.entries import entries
from tests.support.spark.standalone import Standalone


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stream_is_read_by_the_executors_of_a_cluster(
    standalone: Standalone,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(5000)
    found = standalone.submit("read_on_cluster.py", embedded_url, stream.name, str(tmp_path))
    assert found["master"] == standalone.url
    assert found["executors"] == 2
    assert found["whole"] == [5000, 5000 * 5001 // 2, 6]
    assert found["streamed"] == [5000, 5000 * 5001 // 2]
    values = sum(len(value) for _, value in entries(5000))
    assert found["columns"] == [5000, 5000 * 5001 // 2, values]
    assert "ColumnarToRow" in found["plan"]
    assert "there is no stream 'nobody'" in found["error"]
    assert "Traceback" not in found["error"]


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_topic_a_table_and_a_stream_are_written_by_the_executors_of_a_cluster(
    standalone: Standalone,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    database_url: str,
    engine: sa.Engine,
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(5000)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE totals (ride text PRIMARY KEY, distance bigint)")
    topic, folder = f"{stream.name}-out", str(tmp_path)
    words = (embedded_url, stream.name, topic, database_url, folder)
    found = standalone.submit("write_on_cluster.py", *words)
    assert found["master"] == standalone.url
    assert "headwater (nodes)" in found["plan"]
    with headwater.connect(embedded_url) as hw:
        again = [(m.tag, m.value) for m in hw.stream(f"{stream.name}-again").read(1, 10_000) if m]
        hw.stream(f"{stream.name}-again").delete()
        copied = [row for batch in hw.topic(topic).scan() for row in batch.to_pylist()]
        hw.topic(topic).delete()
    assert sorted((row["tag"], row["value"]) for row in copied) == sorted(entries(5000))
    assert again == list(entries(5000))
    wanted: dict[str, int] = {}
    for offset, (tag, _) in enumerate(entries(5000), 1):
        wanted[tag] = wanted.get(tag, 0) + offset
    with engine.connect() as conn:
        assert {row[0]: row[1] for row in conn.exec_driver_sql("SELECT * FROM totals")} == wanted


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_an_executor_that_is_killed_while_it_sends_nodes_neither_loses_nor_repeats_a_row(
    standalone: Standalone, embedded_url: str, name: str, tmp_path: Path
) -> None:
    """Each task has sent nodes when its executor dies: 32 of a thousand rows are packed ahead."""
    count, marker = 200_000, tmp_path / "killed"
    words = (embedded_url, name, str(marker), str(count))
    found = standalone.submit("write_while_an_executor_dies.py", *words)
    assert marker.exists()
    assert "headwater (nodes)" in found["plan"]
    with headwater.connect(embedded_url) as hw:
        written = [int(m.value) for m in hw.stream(name).read(1, count + 1000) if m]
        hw.stream(name).delete()
    assert written == list(range(count))
