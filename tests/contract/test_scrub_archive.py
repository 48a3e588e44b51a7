"""A scrub of archives finds every file and version that is not as it was written, at its place."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import Defect, Headwater, ScrubReport, StoreError
from headwater.errors import InvalidInput, UnknownArchive
from headwater.log.node import SCHEMA
from headwater.log.reading import extent
from headwater.spark.archives import reading
from headwater.spark.archives.reading import write_files
from headwater.spark.archives.scrubbing import scrub_archives
from headwater.spark.archives.table import Archive, Contents, File
from headwater.spark.archives.writing import write_range
from headwater.store.scrubbing import ScrubProgress
from headwater.timeline import AsyncFarm, Farm
from headwater.timeline.layout import safe_farm
from tests.support import resharding
from tests.support.commands import run
from tests.support.entries import entries
from tests.support.farms import DEAD, Replica, replicas
from tests.support.servers import Server

LONG_AGO = time.time() - 2 * 24 * 3600


def table_of(first: int, last: int, step: int = 1) -> pa.Table:
    """Return messages whose values do not compress, so that a file is mostly their bytes."""
    offsets = list(range(first, last + 1, step))
    columns = (
        offsets,
        [f"ride-{n % 7}" for n in offsets],
        [os.urandom(40) for _ in offsets],
        [1_900_000_000_000 + n for n in offsets],
    )
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """Make two versions; the second has a gap, and two files with every other offset each."""
    monkeypatch.setitem(reading._SETTINGS, "row_group_size", 500)
    archive = Archive(str(tmp_path), "rides")
    directory = archive.directory
    one = write_files(directory, table_of(1, 1200))
    two = [table_of(1301, 1999, 2), table_of(1302, 2000, 2)]
    begin = archive.commit(Contents(stream="rides", created=7), 1200, one)
    more = [file for table in two for file in write_files(directory, table)]
    archive.commit(begin, 2000, more, [(1201, 1300)])
    return archive


def path_of(archive: Archive, file: File | str) -> Path:
    return Path(archive.directory.within(file if isinstance(file, str) else file.path))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewrite(archive: Archive, was: str, now: str, commit: int = 1) -> None:
    """Have a commit say something else."""
    path = path_of(archive, f"_delta_log/{commit:020d}.json")
    text = path.read_text()
    assert was in text
    path.write_text(text.replace(was, now))


def defects(archive: Archive) -> list[Defect]:
    report = scrub_archives(archive.place)
    assert report.complete
    assert {(d.kind, d.name) for d in report.defects} <= {("archive", "rides")}
    assert all(d.cure for d in report.defects)
    return list(report.defects)


def places(archive: Archive) -> list[str]:
    return [defect.place for defect in defects(archive)]


def test_a_sound_archive_is_read_as_a_whole(archive: Archive) -> None:
    seen: list[ScrubProgress] = []
    report = scrub_archives(archive.place, progress=seen.append)
    assert (report.objects, report.defects, report.complete) == (1, (), True)
    assert report.bytes == archive.require().bytes
    assert seen[0] == ScrubProgress("archive", "rides", 0, 0, 0)


def test_what_was_archived_from_a_stream_is_sound(valkey: Server, tmp_path: Path) -> None:
    valkey.client().flushall()
    archive = Archive(str(tmp_path), "rides/0")
    with Headwater(valkey.url) as hw:
        hw.stream("rides/0").write_many(entries(3000))
        found = hw.store.run(extent("rides/0"))
        written = write_range(hw, archive, found.created, 1, 3000)
    begin = Contents(stream="rides/0", created=found.created)
    archive.commit(begin, 3000, written.files, written.gaps)
    assert scrub_archives(str(tmp_path)).defects == ()


def test_a_missing_file_is_found(archive: Archive) -> None:
    file = archive.require().files[0]
    path_of(archive, file).unlink()
    (defect,) = defects(archive)
    assert (defect.place, defect.expected) == (f"file {file.path}", "offsets 1-1200")
    assert defect.found == "no file"


def test_a_file_of_another_length_is_found(archive: Archive) -> None:
    file = archive.require().files[0]
    path_of(archive, file).write_bytes(path_of(archive, file).read_bytes()[:-9])
    (defect,) = defects(archive)
    assert (defect.expected, defect.found) == (f"{file.bytes} bytes", f"{file.bytes - 9} bytes")


def test_a_damaged_page_is_found_with_the_offsets_it_concerns(archive: Archive) -> None:
    file = archive.require().files[0]
    flip(path_of(archive, file), file.bytes // 2)
    (defect,) = defects(archive)
    assert defect.place == f"file {file.path}, offsets 501-1000"
    assert "CRC" in defect.found


@pytest.mark.parametrize("tenth", range(10))
def test_no_byte_of_a_file_can_change_unnoticed(archive: Archive, tenth: int) -> None:
    file = archive.require().files[1]
    for at in {0, 3, 4, file.bytes * tenth // 10, file.bytes - 1 - tenth}:
        flip(path_of(archive, file), at)
        found = places(archive)
        assert found, f"byte {at} of {file.bytes}"
        assert all(place.startswith(f"file {file.path}") for place in found)
        flip(path_of(archive, file), at)
    assert places(archive) == []


RECORDED = {
    "rows": (r"\"numRecords\": 1200", r"\"numRecords\": 1201"),
    "first": (r"{\"offset\": 1,", r"{\"offset\": 2,"),
    "last": (r"{\"offset\": 1200,", r"{\"offset\": 1199,"),
    "min_time_ms": ("17:46:40.001", "17:46:40.002"),
    "max_time_ms": ("17:46:41.200", "17:46:41.201"),
}


@pytest.mark.parametrize("field", RECORDED)
def test_rows_that_are_not_as_recorded_are_found(archive: Archive, field: str) -> None:
    file = archive.require().files[0]
    rewrite(archive, *RECORDED[field])
    (defect,) = defects(archive)
    assert defect.place == f"file {file.path}, {field}"
    assert abs(int(defect.expected) - int(defect.found)) == 1


def test_messages_where_the_table_has_a_gap_are_found(archive: Archive) -> None:
    file = archive.require().files[0]
    ends = ('gaps.0.first","version":1201', 'gaps.0.first","version":11')
    rewrite(archive, *ends, commit=2)
    found = {(defect.place, defect.found) for defect in defects(archive)}
    assert (f"file {file.path}, offsets 501-1000", "500 messages") in found


def test_an_offset_in_two_files_is_found(archive: Archive) -> None:
    (again,) = write_files(archive.directory, table_of(1301, 1301))
    archive.commit(archive.require(), 2001, [again])
    (defect,) = defects(archive)
    assert (defect.place, defect.expected) == ("offset 1301", "one message")
    assert again.path in defect.found


def test_a_table_that_contradicts_itself_is_found(archive: Archive) -> None:
    rewrite(archive, '"version":2000', '"version":1250', commit=2)
    files = archive.require().files
    assert {place for place in places(archive) if place.startswith("its table")} == {
        "its table, gaps",
        *(f"its table, file {file.path}" for file in files[1:]),
    }


def test_a_table_that_cannot_be_read_is_found(archive: Archive) -> None:
    rewrite(archive, '"add"', '"a', commit=2)
    (defect,) = defects(archive)
    assert (defect.place, defect.expected) == ("its table", "commits that can be read")


def test_the_archive_of_another_stream_is_found(archive: Archive) -> None:
    old = Path(archive.directory.path)
    old.rename(old.with_name("stream-trips"))
    report = scrub_archives(archive.place)
    assert {defect.name for defect in report.defects} == {"trips"}
    assert all("the history of 'rides'" in defect.found for defect in report.defects)


def test_files_that_no_commit_names_are_leftovers_once_no_archiver_can_be_at_them(
    archive: Archive,
) -> None:
    (left,) = write_files(archive.directory, table_of(2001, 2010))
    assert places(archive) == []
    os.utime(path_of(archive, left), (LONG_AGO, LONG_AGO))
    (defect,) = defects(archive)
    assert (defect.place, defect.found) == (f"file {left.path}", "a leftover")
    archive.commit(archive.require(), 2010, [left])
    assert places(archive) == []


def test_a_scrub_keeps_to_its_rate_and_stops_when_asked(archive: Archive) -> None:
    began = time.monotonic()
    size = archive.require().bytes
    assert scrub_archives(archive.place, rate_mb_s=4 * size / 1_000_000).complete
    assert time.monotonic() - began > 0.2
    assert not scrub_archives(archive.place, stop=lambda: True).complete
    with pytest.raises(InvalidInput, match="rate_mb_s"):
        scrub_archives(archive.place, rate_mb_s=0)


def test_a_place_or_a_stream_without_an_archive_is_an_error(archive: Archive) -> None:
    with pytest.raises(InvalidInput, match="there are no archives at"):
        scrub_archives(f"{archive.place}/elsewhere")
    with pytest.raises(UnknownArchive, match="trips"):
        scrub_archives(archive.place, ["trips"])


def test_the_command_reports_and_exits_as_for_a_store(archive: Archive) -> None:
    answer = run(None, "scrub", "--archive", archive.place)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("sound: 1 objects, ")
    file = archive.require().files[0]
    path_of(archive, file).unlink()
    answer = run(None, "scrub", "--archive", archive.place, "rides", "--json")
    assert answer.code == 3
    assert (answer.row["store"], answer.row["defects"][0]["place"]) == (
        archive.place,
        f"file {file.path}",
    )
    assert run(None, "scrub", "--archive", archive.place, "trips").code == 1
    assert run(None, "scrub", "--archive", archive.place, "--kind", "queue").code == 2


# ── A scrub of a farm finds what breaks the merge rule, and names the cluster ────────────────────


KEYS = [f"k{n}" for n in range(60)]


@pytest.fixture
def four(valkey: Server) -> list[Replica]:
    """Two clusters of two instances, all with the same timelines, inserts and deletes."""
    four = replicas(valkey, 4)
    with Farm.open(farm_of(four), write_quorum="100%") as farm:
        farm.insert([(key, n, f"m{n}") for key in KEYS for n in range(5)])
        farm.delete([(key, 9, "m1") for key in KEYS])
    return four


def farm_of(four: list[Replica]) -> str:
    a, b, c, d = (replica.url for replica in four)
    return f"{a},{b};{c},{d}"


def scrub(farm: str, keep: int | None = None, **words: Any) -> ScrubReport:
    async def look() -> ScrubReport:
        async with AsyncFarm.open(farm, max_size=10, keep=keep, timeout_ms=20_000) as opened:
            return await opened.scrub(**words)

    return asyncio.run(look())


def test_a_farm_of_either_kind_is_scrubbed_by_its_own_method(four: list[Replica]) -> None:
    with Farm.open(farm_of(four), max_size=10, timeout_ms=20_000) as farm:
        report = farm.scrub()
        assert (report.objects, report.defects, report.complete) == (60, (), True)
        assert not farm.scrub(stop=lambda: True).complete
    assert scrub(farm_of(four)).objects == 60


def the_one(four: list[Replica], keep: int | None = None) -> Defect:
    (defect,) = scrub(farm_of(four), keep).defects
    assert defect.kind == "timeline"
    return defect


def home(four: list[Replica], key: str, cluster: int = 2) -> Replica:
    """Return the instance of a cluster that has a key."""
    (found,) = (r for r in four[2 * cluster - 2 : 2 * cluster] if r.client.exists(f"{key}+"))
    return found


def walk(four: list[Replica]) -> None:
    words = ("timeline", "walk", "--once", "--instances", farm_of(four))
    assert run(None, *words, "--max-size", "10").code == 0


def test_a_sound_farm_has_no_defects_and_is_read_as_a_whole(four: list[Replica]) -> None:
    seen: list[ScrubProgress] = []
    report = scrub(farm_of(four), progress=seen.append)
    assert (report.objects, report.defects, report.complete) == (60, (), True)
    assert report.bytes > 60 * 2 * 5 * 10
    assert {at.kind for at in seen} == {"timeline"}


def test_a_member_in_both_sets_is_found_and_a_walk_completes_the_write(four: list[Replica]) -> None:
    home(four, "k7").client.zadd("k7-", {"m3": 2})
    defect = the_one(four)
    assert (defect.name, defect.expected, defect.found) == ("k7", "in one set", "in both")
    assert defect.place == f"cluster 2, {safe_farm(home(four, 'k7').url)}, member m3"
    assert "headwater timeline walk" in defect.cure
    walk(four)
    assert scrub(farm_of(four)).defects == ()


def test_a_copy_that_differs_is_found_with_a_count_and_an_example(four: list[Replica]) -> None:
    home(four, "k7").client.zrem("k7+", "m2", "m3")
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 2, {safe_farm(home(four, 'k7').url)}")
    assert defect.expected == "as elsewhere: member m2 inserted at 2.0"
    assert defect.found == "2 elements are missing or older"
    walk(four)
    assert scrub(farm_of(four)).defects == ()


def test_a_timeline_that_a_cluster_lacks_altogether_is_found(four: list[Replica]) -> None:
    instance = home(four, "k7", 1)
    instance.client.delete("k7+", "k7-")
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 1, {safe_farm(instance.url)}")
    assert defect.found == "5 elements are missing or older"


def test_a_delete_that_a_cluster_missed_is_found(four: list[Replica]) -> None:
    home(four, "k7").client.delete("k7-")
    assert the_one(four).expected == "as elsewhere: member m1 deleted at 9.0"


def test_more_elements_than_a_key_keeps_are_found(four: list[Replica]) -> None:
    for cluster in (1, 2):
        extra = {f"x{n}": 100 + n for n in range(16)}
        home(four, "k7", cluster).client.zadd("k7+", extra)
    report = scrub(farm_of(four))
    assert [(d.name, d.expected, d.found) for d in report.defects] == [
        ("k7", "at most 20 elements", "21")
    ] * 2
    assert scrub(farm_of(four), keep=21).defects == ()
    walk(four)
    assert scrub(farm_of(four)).defects == ()


@pytest.mark.parametrize("score", ["inf", "-inf"])
def test_a_score_that_is_not_finite_is_found(four: list[Replica], score: str) -> None:
    for cluster in (1, 2):
        home(four, "k7", cluster).client.zadd("k7+", {"odd": float(score)})
    report = scrub(farm_of(four))
    assert [(d.name, d.expected, d.found) for d in report.defects] == [
        ("k7", "a finite score", score)
    ] * 2
    assert all(d.place.endswith(", member odd") for d in report.defects)


@pytest.mark.parametrize("kind", ["string", "list", "set", "hash", "stream"])
def test_a_key_of_another_type_is_found_and_hides_no_other_defect(
    four: list[Replica], kind: str
) -> None:
    client: Any = home(four, "k7").client
    client.delete("k7-")
    {
        "string": lambda: client.set("k7-", "x"),
        "list": lambda: client.rpush("k7-", "x"),
        "set": lambda: client.sadd("k7-", "x"),
        "hash": lambda: client.hset("k7-", "x", "y"),
        "stream": lambda: client.xadd("k7-", {"x": "y"}),
    }[kind]()
    home(four, "k8").client.zrem("k8+", "m2")
    found = {(d.name, d.expected, d.found) for d in scrub(farm_of(four)).defects}
    assert found == {
        ("k7", "a sorted set", f"a {kind}"),
        ("k8", "as elsewhere: member m2 inserted at 2.0", "1 elements are missing or older"),
    }


def test_a_key_on_the_wrong_instance_is_found(four: list[Replica]) -> None:
    right = home(four, "k7", 1)
    (wrong,) = (replica for replica in four[:2] if replica is not right)
    wrong.client.zadd("k7+", {"m": 1})
    defect = the_one(four)
    assert (defect.name, defect.place) == ("k7", f"cluster 1, {safe_farm(wrong.url)}, key k7+")
    assert (defect.expected, defect.found) == (f"on {safe_farm(right.url)}", "here")


def test_keys_of_others_are_none_of_its_business(four: list[Replica]) -> None:
    four[0].client.set("config", "x")
    four[1].client.zadd("board", {"m": float("inf")})
    assert scrub(farm_of(four)).defects == ()


def test_a_farm_in_use_raises_no_false_alarm(four: list[Replica]) -> None:
    ended = threading.Event()
    rounds = 0

    def use() -> None:
        nonlocal rounds
        with Farm.open(farm_of(four), max_size=10, timeout_ms=20_000) as farm:
            while not ended.is_set():
                rounds += 1
                write = farm.delete if rounds % 2 else farm.insert
                write([(key, 100 + rounds, f"m{n}") for key in KEYS for n in range(15)])

    user = threading.Thread(target=use)
    user.start()
    try:
        reports = [scrub(farm_of(four)) for _ in range(3)]
    finally:
        ended.set()
        user.join()
    assert rounds > 5
    assert [report.defects for report in reports] == [()] * 3


def test_a_farm_that_is_half_moved_raises_no_false_alarm(eight: list[Replica]) -> None:
    before, after = resharding.farm_of(eight, "01"), resharding.farm_of(eight, "012;345")
    with Farm.open(before) as farm:
        resharding.fill(farm, random.Random(4))
    resharding.stop_behind(before, after, 1)
    assert eight[2].client.dbsize()
    assert scrub(before, keep=20_000).defects == ()
    resharding.reshard(before, after)
    assert scrub(after, keep=20_000).defects == ()


def test_an_instance_that_cannot_be_read_is_an_error(four: list[Replica]) -> None:
    with pytest.raises(StoreError):
        scrub(f"{farm_of(four)};{DEAD},{DEAD}")


def test_the_command_for_farms_reports_and_exits_as_for_a_store(four: list[Replica]) -> None:
    words = ("timeline", "scrub", "--max-size", "10", "--instances")
    answer = run(None, *words, farm_of(four))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("sound: 60 objects, ")
    home(four, "k7").client.zadd("k7-", {"m3": 2})
    answer = run(None, *words, farm_of(four), "--json")
    assert answer.code == 3
    (defect,) = answer.row["defects"]
    assert (defect["kind"], defect["name"], defect["repairable"]) == ("timeline", "k7", False)
    assert answer.row["store"] == safe_farm(farm_of(four))
    assert run(None, *words, DEAD).code == 1


def test_a_scrub_ends_when_it_is_asked_to(four: list[Replica]) -> None:
    assert not scrub(farm_of(four), stop=lambda: True).complete
