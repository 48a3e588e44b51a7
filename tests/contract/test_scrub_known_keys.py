"""Every key that the functions in the server can make is known to scrubs and to the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headwater
from headwater import Headwater
from headwater.ick.keys import shard_key
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import queue_key
from headwater.store.job_notes import NewJob, begin_job, note_job
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
        for job, lease_ms in (("open", 60_000), ("over", None)):
            begun = hw.store.run(begin_job(NewJob(job, "k", b"h", b"a", b"0"), "me", 60_000))
            assert begun is not None
            hw.store.run(note_job(job, begun.token, b"1", lease_ms))
        assert len(raw.keys("hw:{jobs}:*")) == 4
        assert hw.scrub(kinds=["store"]).defects == ()


def test_every_part_is_in_the_reference() -> None:
    missing = [
        owner + part for owner, part in sorted(parts()) if f"`{owner}{part}" not in REFERENCE
    ]
    assert missing == []
    for name in registries():
        assert (f"`{name}:" if name in _PREFIXES else f"`{name}`") in REFERENCE
