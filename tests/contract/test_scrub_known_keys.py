"""Every key that the functions in the server can make is known to scrubs and to the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headwater
from headwater import Headwater, Limits
from headwater.ick.keys import shard_key
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import queue_key
from headwater.store.presence import NewJob, begin_job, note_job
from headwater.store.scrubbing import parts_of
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server

SOURCES = Path(headwater.__file__).parent
REFERENCE = (Path(__file__).parents[2] / "docs/reference/keys.md").read_text()
# How the functions name a part of an object: the key of the object, and what stands behind it.
_PART = re.compile(r"\b(K|G|S|queue\.key) \.\. '(:[a-z]+:?)'")
_GLOBAL = re.compile(r"hw:\{[a-z]+\}")
# What begins keys and is none itself, and a key that doctor removes at once.
_PREFIXES = {"hw:{jobs}"}
_REMOVED = {"hw:{doctor}"}


def parts() -> set[tuple[str, str]]:
    """Return every part that a function can make, with the key that it belongs to."""
    found = set()
    for room in ("log", "queue", "ick"):
        for source in (SOURCES / room / "lua").rglob("*.lua"):
            for variable, part in _PART.findall(source.read_text()):
                owner = "Q" if room == "queue" else variable
                if part != ":g:":
                    found.add((owner, part))
    return found


def registries() -> set[str]:
    """Return every key of the whole store that the package names."""
    found = set()
    for source in SOURCES.rglob("*.py"):
        found.update(_GLOBAL.findall(source.read_text()))
    return found


@pytest.fixture(scope="module")
def server() -> object:
    with Server() as server:
        yield server


def test_all_owners_were_read() -> None:
    assert {owner for owner, _ in parts()} == {"K", "G", "S", "Q"}
    assert len(parts()) > 35
    assert {"hw:{store}", "hw:{deleted}", "hw:{scrub}"} <= registries()


def test_every_part_of_an_object_is_known_to_a_scrub(server: Server) -> None:
    stream = stream_key("s")
    owners = {
        "K": stream,
        "G": group_key(stream, "g"),
        "S": shard_key("c", 1, 0),
        "Q": queue_key("q"),
    }
    with Headwater(server.url) as hw, server.client() as raw:
        for owner, part in parts():
            raw.set(owners[owner] + part + ("1" if part.endswith(":") else ""), "x")
        defects = hw.scrub(kinds=["store"]).defects
    assert len(defects) > 20, "they are of the wrong type, or of nobody"
    assert [d.place for d in defects if d.found == "no such part"] == []
    assert [d.place for d in defects if "delete" in d.cure] == [], "no cure destroys anything"


@pytest.mark.parametrize("key", ["hw:s:{s}:newer", "hw:s:{s}:g:1:g:newer", "hw:q:{q}:newer"])
def test_the_cure_of_a_part_that_a_newer_release_made_destroys_nothing(
    server: Server, key: str
) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        raw.flushall()
        hw.stream("s").write("t", b"v")
        hw.stream("s").group("g").read(1)
        hw.queue("q").push(b"v")
        raw.hset(key, "f", "v")
        (defect,) = hw.scrub().defects
        assert defect.place == f"key {key}"
        assert "leave it as it is" in defect.cure
        assert hw.repair(dry_run=False).left == (defect,)
        assert raw.exists(key)


# What the key of an object is called in Lua, and by which function all of its parts are freed.
FREED = {
    ("log", "G"): "log/lua/shared/60-groups.lua",
    ("log", "K"): "log/lua/stream_info.lua",
    ("ick", "S"): "ick/lua/channel_shard.lua",
}


@pytest.mark.parametrize(("package", "owner"), FREED)
def test_every_part_of_an_object_is_freed_with_it(package: str, owner: str) -> None:
    # Names of groups and publishes are kept until all of these are freed.
    later = {b"", b":deleted", b":groups", b":publishing", b":stagings"} if owner == "K" else {b""}
    freed = "".join(
        call
        for call in re.findall(
            r"'UNLINK', (.*?)\)\n", (SOURCES / FREED[package, owner]).read_text(), re.DOTALL
        )
    )
    missing = [
        part
        for part in parts_of(package, owner).keys() - later
        if f"{owner} .. '{part.decode()}'" not in freed
    ]
    assert missing == []


_WORDS = {"hash": "hash", "sorted set": "zset", "list": "list", "stream": "stream"}
_ROW = re.compile(r"^\| (`.*?) \| ([a-z, ]+) \|", re.MULTILINE)
_NAMED = re.compile(r"`([KGQS])(:[a-z]+)`")
_CALLED = {"K": ("log", "K"), "G": ("log", "G"), "Q": ("queue", "K queue.key"), "S": ("ick", "S")}


def test_the_reference_has_the_type_of_every_part() -> None:
    seen = 0
    for names, said in _ROW.findall(REFERENCE):
        kinds = [word.replace("hashes", "hash").removesuffix("s") for word in said.split(", ")]
        named = _NAMED.findall(names)
        for place, (letter, part) in enumerate(named):
            known = parts_of(*_CALLED[letter]).get(part.encode())
            shown = _WORDS[kinds[min(place, len(kinds) - 1)]]
            # A key that exists only during one call is in the reference, and in no store.
            assert known in (shown, None), f"{letter}{part}"
            seen += known is not None
    assert seen > 40


def test_every_key_of_the_whole_store_is_known_to_a_scrub(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        names = registries() - _REMOVED - _PREFIXES
        raw.flushall()
        for name in names:
            if not raw.exists(name):
                raw.sadd(name, "x")
        defects = hw.scrub(kinds=["store"]).defects
    assert [d.place for d in defects if d.expected == "an object that it belongs to"] == []


def test_jobs_of_servers_are_known_to_a_scrub(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        raw.flushall()
        for job, ack_ms in (("open", 60_000), ("over", None)):
            begun = hw.store.run(begin_job(NewJob(job, "k", b"h", b"a", b"0"), "me", 60_000))
            assert begun is not None
            hw.store.run(note_job(job, begun.token, b"1", ack_ms))
        assert len(raw.keys("hw:{jobs}:*")) == 4
        assert hw.scrub(kinds=["store"]).defects == ()


def test_every_part_is_in_the_reference() -> None:
    missing = [
        owner + part for owner, part in sorted(parts()) if f"`{owner}{part}" not in REFERENCE
    ]
    assert missing == []
    for name in registries():
        assert (f"`{name}:" if name in _PREFIXES else f"`{name}`") in REFERENCE


def test_notes_of_walks_and_moves_of_a_farm_are_known_to_a_scrub(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        raw.flushall()
        for note in ("walk:now", "walk:last", "move:now", "move:last"):
            raw.set(f"hw:{{timelines}}:{note}", "{}")
        assert_sound(hw)


def test_a_stream_to_which_nothing_was_published_is_sound(server: Server) -> None:
    """The answer to its producer is kept, though the stream was never written."""
    with Headwater(server.url) as hw, server.client() as raw:
        raw.flushall()
        hw.stream("s").publish(producer="p", sequence=1)
        assert raw.exists(f"{stream_key('s')}:answers")
        assert_sound(hw)


def test_sound_groups_with_order_and_with_limits_have_no_finding(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        raw.flushall()
        stream = hw.stream("s")
        stream.write_many([(f"t{n % 3}", b"v") for n in range(30)])
        stream.group("ordered", ordered=True).read(20, ack_ms=FAR)
        limited = stream.group("limited")
        limited.limit(Limits(max_in_flight=20, max_in_flight_per_key=2, rate_per_key="3/h"))
        limited.read(10, ack_ms=FAR)
        assert_sound(hw)
