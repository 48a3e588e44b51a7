"""An archive holds what its table says, and readers see one log.

Planners and tasks run in this process here (see tests.support.spark.archiving);
tests.spark.test_archive_job has Spark run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from headwater import Headwater, Stream, Topic
from headwater.errors import ArchiveMismatch, DataLost, InvalidInput, TargetNotEmpty, UnknownArchive
from headwater.log.keys import stream_key, tail_key
from headwater.spark.archives import reading, writing
from headwater.spark.archives.table import Archive, Directory, File
from headwater.spark.jobs import restore as restore_job
from headwater.spark.jobs.archive import archive, reader_name
from headwater.spark.jobs.restore import restore
from headwater.spark.log.range_reader import Condition
from headwater.spark.log.source import HeadwaterSource
from tests.support.commands import run
from tests.support.entries import entries, pairs
from tests.support.spark.archiving import (
    cut_small,
    expected,
    pairs_of,
    read_batch,
    rows_of,
    run_archiver,
    stream_of_3000,
    stream_reader,
)
from tests.support.spark.queries import finish, following


@pytest.fixture
def hw(embedded: Headwater) -> Headwater:
    return embedded


@pytest.fixture
def stream(hw: Headwater, name: str) -> Stream:
    return stream_of_3000(hw, name)


@pytest.fixture
def options(embedded_url: str, stream: Stream, place: str) -> dict[str, str]:
    return {"url": embedded_url, "stream": stream.name, "archive": place}


@pytest.fixture
def archived(embedded_url: str, stream: Stream, place: str) -> Callable[..., None]:
    """Run an archiver to its end."""

    def run(*, evict: bool = False) -> None:
        run_archiver(embedded_url, stream.name, place, evict=evict)

    return run


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


# ── One log ──────────────────────────────────────────────────────────────────────────────────


def test_a_read_that_was_planned_before_an_eviction_finds_the_archive(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    source = HeadwaterSource(options)
    reader = source.reader(source.schema())
    parts = list(reader.partitions())
    query = stream_reader(**options)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    steps = query.partitions(start, end)
    stream.evict(100)
    archived(evict=True)
    with pytest.raises(DataLost, match="1 to 100"):
        list(reader.read(parts[0]))
    lenient = HeadwaterSource({**options, "failOnDataLoss": "false"})
    reader = lenient.reader(lenient.schema())
    rows = [row for part in parts for row in rows_of(reader.read(part))]
    assert pairs_of(rows) == expected(3000)[100:]
    with pytest.raises(DataLost, match="1 to 100"):
        [list(query.read(step)) for step in steps]


def test_an_eviction_between_two_looks_leaves_no_gap(
    options: dict[str, str], archived: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is read, then an archiver commits and evicts, then the log is looked at."""
    load = Archive.load
    pending = [True]

    def load_then_archive(archive: Archive) -> Any:
        found = load(archive)
        if pending and pending.pop():
            archived(evict=True)
        return found

    monkeypatch.setattr(Archive, "load", load_then_archive)
    assert pairs_of(read_batch(**options)) == expected(3000)


@pytest.mark.usefixtures("small_tasks")
def test_conditions_spare_files_and_keep_the_same_rows(
    stream: Stream,
    options: dict[str, str],
    archived: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = HeadwaterSource(options)
    reader = source.reader(source.schema())
    conditions = (Condition("offset", "greater", 1000), Condition("tag", "equal", "tag-3"))
    reader.reading = replace(reader.reading, conditions=conditions)  # type: ignore[attr-defined]

    def kept() -> list[Any]:
        """Return what Spark would keep of the rows that are read."""
        rows = [row for part in reader.partitions() for row in rows_of(reader.read(part))]
        return [row for row in rows if row.tag == "tag-3"]

    in_log = kept()
    archived(evict=True)
    opened: list[str] = []
    read_file = reading.read_file

    def noting(directory: Directory, file: File, *rest: Any) -> Any:
        opened.append(file.path)
        return read_file(directory, file, *rest)

    monkeypatch.setattr("headwater.spark.archives.reading.read_file", noting)
    assert kept() == in_log
    all_files = Archive(options["archive"], stream.name).require().files
    assert 0 < len(set(opened)) < len(all_files)
    assert all(row.offset > 1000 for row in in_log)


def test_a_stream_that_is_gone_is_what_its_archive_has(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    stream.delete()
    assert pairs_of(read_batch(**options)) == expected(3000)


def test_a_stream_made_anew_is_refused(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    stream.delete()
    stream.write_many(entries(5000))
    for attempt in (archived, lambda: read_batch(**options)):
        with pytest.raises(ArchiveMismatch, match="written anew"):
            attempt()
    query = stream_reader(**options)
    with pytest.raises(ArchiveMismatch, match="written anew"):
        query.initialOffset()


def test_a_log_older_than_its_archive_is_refused(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    archive = Archive(options["archive"], stream.name)
    archive.commit(archive.require(), 4000)
    for attempt in (archived, lambda: read_batch(**options)):
        with pytest.raises(ArchiveMismatch, match="the log at 3000"):
            attempt()


# ── Losses, readers ──────────────────────────────────────────────────────────────────────────


@pytest.mark.damages
def test_what_the_store_has_lost_is_an_exact_gap(
    embedded_url: str, stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    place = options.pop("archive")
    for row in entries(9, 3001):
        stream.write(*row)
    socket = Path(embedded_url.removeprefix("embedded://")) / "valkey.sock"
    with redis.Redis(unix_socket_path=str(socket)) as raw:
        assert raw.xdel(tail_key(stream_key(stream.name)), "0-3005") == 1
    with pytest.raises(DataLost, match=r"3005 to 3005 .* are missing in the store"):
        read_batch(**options)
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [row for row in expected(3009) if row[0] != 3005]
    archived()
    assert Archive(place, stream.name).require().gaps == ((3005, 3005),)


def test_what_was_evicted_too_early_is_an_exact_gap(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    stream.evict(40)
    archived()
    stream.write_many(entries(100, 3001))
    stream.evict(3100)
    archived()
    stream.write_many(entries(10, 3101))
    contents = Archive(options["archive"], stream.name).require()
    assert (contents.gaps, contents.first, contents.last) == (((1, 40), (3001, 3100)), 41, 3100)
    for start, lost in (("earliest", "3001 to 3100"), ("1", "1 to 40")):
        with pytest.raises(DataLost, match=lost):
            read_batch(**options, startingOffsets=start)
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [*expected(3000)[40:], *expected(3110)[3100:]]
    query = stream_reader(**options)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match="3001 to 3100"):
        query.partitions(start, end)
    query = stream_reader(**options, startingOffsets="1")
    with pytest.raises(DataLost, match="1 to 40"):
        query.initialOffset()


@pytest.mark.usefixtures("small_tasks")
def test_what_is_evicted_while_it_is_archived_is_an_exact_gap(
    stream: Stream, options: dict[str, str]
) -> None:
    def evicting(work: Any, parts: Any) -> Any:
        written = []
        for part in parts:
            stream.evict(part.start + 9)
            written.append(work(part))
        return written

    run_archiver(options["url"], stream.name, options["archive"], evicting)
    contents = Archive(options["archive"], stream.name).require()
    assert len(contents.gaps) > 1
    assert all(last - first == 9 for first, last in contents.gaps)
    lost = {n for first, last in contents.gaps for n in range(first, last + 1)}
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [row for row in expected(3000) if row[0] not in lost]


def test_retention_waits_for_the_archiver_and_it_for_other_readers(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    reader = reader_name(options["archive"])
    assert stream.info().readers == {reader: 3001}
    stream.write_many(entries(100, 3001))
    assert stream.retain(max_count=10).held_by == reader
    stream.retain()
    stream.register_reader("slow", 3020)
    group = stream.group("slower", 3005)
    group.read(5)
    archived(evict=True)
    assert stream.info().first == 3010
    group.remove()
    archived(evict=True)
    assert stream.info().first == 3020
    stream.forget_reader("slow")
    archived(evict=True)
    assert stream.info().first == 3101


def test_large_messages_are_archived_in_pieces(
    stream: Stream, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PIECE_BYTES", 1_000_000)
    values = [os.urandom(400_000) for _ in range(30)]
    for value in values:
        stream.write("large", value)
    run_archiver(options["url"], stream.name, options["archive"])
    files = Archive(options["archive"], stream.name).require().files
    assert len(files) >= 3
    # A reply of the store, and what was held before it.
    assert max(file.bytes for file in files) < 6_000_000
    rows = read_batch(**options, startingOffsets="3001")
    assert [row.value for row in rows] == values


# ── Spark archives a log, reads archive and log as one, and brings an archive back ───────────────


def offsets(rows: Any) -> list[int]:
    return sorted(row.offset for row in rows.select("offset").collect())


@pytest.fixture
def old(hw: Headwater, name: str) -> Stream:
    """A stream with 5000 messages on the embedded store."""
    stream = hw.stream(name)
    stream.write_many(entries(5000))
    return stream


def test_a_stream_is_archived_evicted_and_read_as_one(
    spark: SparkSession,
    source: Callable[..., DataFrameReader],
    store_url: str,
    make_stream: Callable[..., Stream],
    place: str,
) -> None:
    stream = make_stream(5000)
    done = archive(spark, stream.name, to=place, url=store_url, evict=True)
    assert (done.messages, done.offsets, done.evicted, done.gaps) == (5000, 5000, 5000, ())
    assert done.archived_up_to == {stream.name: 5000}
    stream.write_many(entries(500, 5001))
    both = source(stream=stream.name, archive=place)
    rows = both.load().orderBy("offset").collect()
    assert [(row.offset, row.tag, bytes(row.value)) for row in rows] == [
        (offset, tag, value) for offset, (tag, value) in enumerate(entries(5500), 1)
    ]
    some = both.load().where("offset > 4000 and tag = 'tag-3'")
    assert offsets(some) == [n for n in range(4001, 5501) if n % 7 == 3]
    assert archive(spark, stream.name, to=place, url=store_url).messages == 500
    assert archive(spark, stream.name, to=place, url=store_url).messages == 0


def test_a_streaming_query_goes_from_the_archive_into_the_log(
    spark: SparkSession, embedded_url: str, old: Stream, place: str, tmp_path: Path
) -> None:
    def all_there_is() -> list[int]:
        given = {"archive": place, "maxOffsetsPerTrigger": "3000"}
        rows = following(spark, embedded_url, old.name, **given).select("offset")
        finish(rows, "parquet", tmp_path / "checkpoint", path=tmp_path / "out")
        return sorted(row.offset for row in spark.read.parquet(str(tmp_path / "out")).collect())

    archive(spark, old.name, to=place, url=embedded_url, evict=True)
    old.write_many(entries(1000, 5001))
    assert all_there_is() == list(range(1, 6001))
    old.write_many(entries(1000, 6001))
    archive(spark, old.name, to=place, url=embedded_url, evict=True)
    assert all_there_is() == list(range(1, 7001))


def test_a_topic_goes_to_the_archive_and_comes_back(
    spark: SparkSession, embedded_url: str, hw: Headwater, name: str, place: str
) -> None:
    topic = hw.topic(name, 3)
    topic.write_many(entries(3000, tags=50))
    done = archive(spark, topic=name, to=place, url=embedded_url, evict=True)
    assert (done.messages, done.evicted, len(done.archived_up_to)) == (3000, 3000, 3)
    topic.write_many(entries(300, 3001, tags=50))
    archive(spark, topic=name, to=place, url=embedded_url)
    read = spark.read.format("headwater").options(url=embedded_url, topic=name, archive=place)
    assert read.load().count() == 3300
    back = restore(spark, topic=name, archive=place, into=f"{name}-2", url=embedded_url)
    assert (back.messages, back.same_offsets) == (3300, True)
    second = hw.topic(f"{name}-2")
    assert second.partitions() == 3
    for partition in range(3):
        assert rows_of_partition(second, partition) == sorted(
            (row.offset, row.tag, bytes(row.value))
            for row in read.load().where(f"partition = {partition}").collect()
        )
    topic.delete()
    assert read.load().count() == 3300


def rows_of_partition(topic: Topic, partition: int) -> list[tuple[int, str, bytes]]:
    messages = topic.partition(partition).read(1, 10_000)
    return [(m.offset, m.tag, m.value) for m in messages if m is not None]


def test_a_restored_stream_is_what_was_archived(
    spark: SparkSession, embedded_url: str, hw: Headwater, old: Stream, place: str
) -> None:
    before = old.read(1, 5000)
    archive(spark, old.name, to=place, url=embedded_url)
    into = f"{old.name}-2"
    words: dict[str, Any] = {"archive": place, "into": into, "url": embedded_url}
    shown = restore(spark, old.name, **words, dry_run=True)
    assert (shown.offsets, hw.stream(into).info().exists) == (5000, False)
    done = restore(spark, old.name, **words)
    assert (done.messages, done.same_offsets, done.resumed) == (5000, True, False)
    assert hw.stream(into).read(1, 6000) == before
    again = restore(spark, old.name, **words)
    assert (again.messages, again.resumed) == (0, True)
    with pytest.raises(TargetNotEmpty, match="up to offset 5000"):
        restore(spark, old.name, **words, first=11, last=20)
    more = restore(spark, old.name, **words, first=11, last=20, append=True)
    assert [tuple(move)[1:] for move in more.moved] == [(11, 20, 5001, 5010)]
    assert pairs(hw.stream(into).read(5001, 100)) == entries(10, 11)
    with pytest.raises(InvalidInput, match="which holds 1 to 5000"):
        restore(spark, old.name, archive=place, into="x", url=embedded_url, last=5001)
    with pytest.raises(UnknownArchive, match="nobody"):
        restore(spark, "nobody", archive=place, into="x", url=embedded_url)


def test_a_restore_that_died_goes_on_and_closes_up_holes(
    spark: SparkSession,
    embedded_url: str,
    hw: Headwater,
    old: Stream,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old.compact()
    old.write_many(entries(100, 5001, tags=40))
    kept = [(m.tag, m.value, m.time_ms) for m in old.read(1, 6000) if m is not None]
    old.evict(4995)
    kept = kept[-105:]
    archive(spark, old.name, to=place, url=embedded_url)
    into = hw.stream(f"{old.name}-2")
    words: dict[str, Any] = {"archive": place, "into": into.name, "url": embedded_url}
    monkeypatch.setattr(restore_job, "ROUND_OFFSETS", 30)
    rounds = iter(range(2))

    def dying(_: SparkSession, work: Any, pieces: Any, result: Any) -> Any:  # noqa: ARG001
        """Do what tasks do, then die before anybody hears of the last of it."""
        found = [work(piece) for piece in pieces]
        if next(rounds, None) is None:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(restore_job, "in_tasks", dying)
        with pytest.raises(KeyboardInterrupt):
            restore(spark, old.name, **words)
    assert 0 < into.info().last < 105
    into.write("somebody", b"else")
    done = restore(spark, old.name, **words)
    assert (done.resumed, done.same_offsets) == (True, False)
    found = [m for m in into.read(1, 1000) if m is not None and m.tag != "somebody"]
    assert [(m.tag, m.value, m.time_ms) for m in found] == kept
    assert sum(move.to_last - move.to_first + 1 for move in done.moved) == done.messages


def test_large_messages_are_restored_in_batches_that_the_log_takes(
    hw: Headwater,
    embedded_url: str,
    name: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    monkeypatch.setattr(writing, "BATCH_BYTES", 100_000)
    stream = hw.stream(name)
    stream.write_many([(f"t{n}", bytes([n]) * 30_000) for n in range(20)])
    run_archiver(embedded_url, name, place)
    contents = Archive(place, name).require()
    piece = writing.ArchivePiece(
        Archive(place, name), list(contents.files), 1, 20, f"{name}-2", "p"
    )
    moved = writing.restore_piece(hw, piece)
    assert len(moved) > 4
    assert writing.joined(moved) == [writing.MovedRange(f"{name}-2", 1, 20, 1, 20)]
    assert writing.restore_piece(hw, piece) == []
    assert pairs(hw.stream(f"{name}-2").read(1, 100)) == pairs(stream.read(1, 100))


def test_the_files_of_an_archive_are_a_plain_data_set(
    spark: SparkSession, embedded_url: str, old: Stream, place: str
) -> None:
    archive(spark, old.name, to=place, url=embedded_url)
    rows = spark.read.parquet(f"{place}/stream-{old.name}")
    assert set(rows.columns) == {"offset", "tag", "value", "time", "headers", "day"}
    assert rows.where("day = to_date(time)").count() == 5000


def test_a_dry_run_changes_nothing(
    spark: SparkSession, embedded_url: str, old: Stream, place: str
) -> None:
    old.evict(100)
    old.register_reader("slow", 2001)
    done = archive(spark, old.name, to=place, url=embedded_url, evict=True, dry_run=True)
    assert (done.offsets, done.gaps, done.evicted) == (4900, ((old.name, 1, 100),), 1900)
    assert old.info().readers == {"slow": 2001}
    assert not Path(place).exists()


def test_an_archive_of_another_stream_is_told_in_one_line(
    spark: SparkSession, embedded_url: str, old: Stream, place: str
) -> None:
    archive(spark, old.name, to=place, url=embedded_url)
    old.delete()
    old.write("a", b"b")
    with pytest.raises(ArchiveMismatch):
        archive(spark, old.name, to=place, url=embedded_url)
    read = spark.read.format("headwater").options(url=embedded_url, stream=old.name, archive=place)
    with pytest.raises(Exception, match="is not the history of stream") as refused:
        read.load().collect()
    assert "Traceback" not in str(refused.value)


@pytest.mark.usefixtures("spark")
def test_the_commands_archive_list_and_restore(embedded_url: str, old: Stream, place: str) -> None:
    done = run(embedded_url, "spark", "archive", old.name, "--to", place, "--evict", "--json")
    assert (done.code, done.row["messages"], done.row["evicted"]) == (0, 5000, 5000)
    again = run(embedded_url, "spark", "archive", old.name, "--to", place)
    assert (again.code, "archived 0 messages" in again.out) == (0, True)
    listed = run(None, "spark", "archives", place, "--json")
    assert {key: listed.row[key] for key in ("stream", "first", "last", "messages", "gaps")} == {
        "stream": old.name,
        "first": 1,
        "last": 5000,
        "messages": 5000,
        "gaps": [],
    }
    assert old.name in run(None, "spark", "archives", place).out
    words = (old.name, "--from", place, "--into", f"{old.name}-2")
    back = run(embedded_url, "spark", "restore", *words, "--first", "4001")
    assert back.code == 0
    assert "restored 1,000 messages" in back.out
    assert f"1-1000 of {old.name}-2" in back.out
    refused = run(embedded_url, "spark", "restore", *words, "--last", "10")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert run(None, "spark", "archives", f"{place}-nowhere").out.startswith("no archives")
