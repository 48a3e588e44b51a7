"""Releases work on one store at the same time, replace each other under load, and go back."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headwater.check.history import HistoryEvent, WriteDone, check_group, check_log
from headwater.cli.verify.drive import ONCE, RETRYING, STREAM, noted, roles
from headwater.store.library import COUNTS_BY_HAND_MS, FORMAT, KEY, VERSION
from tests.support.releases import NEXT, WORKER, Release, both_releases
from tests.support.servers import Server

pytestmark = [pytest.mark.fault, pytest.mark.slow]
LONG = int(os.environ.get("HEADWATER_LONG", "1"))
# A housekeeper, writers of every style, members of both groups; fewer of them in a short run.
WORKERS = [
    name
    for name in roles(3, 3)
    if LONG > 1 or name in ("keeper", "writer-0", "writer-2", "member-0", "member-2")
]
# How long a worker works between two replacements, and how much later the next one is replaced.
LIFE_MS = 1500 * LONG
STEP_MS = 150 * LONG


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Release, Release]:
    return both_releases(tmp_path_factory.mktemp("releases"))


class Yard:
    """One server, its workers and all that they noted."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.lives: Counter[str] = Counter()

    def job(self, doing: str, name: str, lasts_ms: int = 0) -> dict[str, Any]:
        """Describe the next life of a worker."""
        self.lives[name] += 1
        notes = str(self.folder / f"{name}.notes")
        life = self.lives[name]
        return {
            "doing": doing, "name": name, "life": life, "url": self.server.url, "notes": notes,
            "lasts_ms": lasts_ms,
        }  # fmt: skip

    def live(self, name: str, lives: Sequence[tuple[Release, int]]) -> None:
        """Let a worker live several lives, each of a release and of so many ms."""
        for release, lasts_ms in lives:
            code, _, err = release.work(**self.job("work", name, lasts_ms))
            assert code == 0, f"{name}: {err}"

    def roll(self, *sequence: Release) -> None:
        """Let all workers go through releases, one after the other."""
        with ThreadPoolExecutor(len(WORKERS)) as pool:
            running = []
            for place, name in enumerate(WORKERS):
                times = [LIFE_MS] * len(sequence)
                times[0] += place * STEP_MS
                times[-1] += (len(WORKERS) - place) * STEP_MS
                lives = list(zip(sequence, times, strict=True))
                running.append(pool.submit(self.live, name, lives))
            for future in running:
                future.result()

    def events(self) -> list[HistoryEvent]:
        """Return all that was noted."""
        return [event for path in self.folder.glob("*.notes") for event in noted(path)]

    def check(self, release: Release) -> None:
        """Drain the groups by a release, and compare the log with what everybody saw."""
        code, out, err = release.work(**self.job("finish", "drain"))
        assert code == 0, err
        said = json.loads(out)
        log = [(offset, value) for offset, value in said["log"]]
        events = self.events()
        assert said["drained"]
        assert check_log(events, log) == []
        for group in (RETRYING, ONCE):
            assert check_group(events, log, group, drained=True) == []

    def written_in_each_life(self) -> dict[str, int]:
        """Return how many writes of each life of a writer were acknowledged."""
        done = [e.call.rpartition(".")[0] for e in self.events() if isinstance(e, WriteDone)]
        return dict(Counter(done))


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Server(fsync="always") as server:
        yield Yard(server, tmp_path)


def test_releases_replace_each_other_one_by_one_and_back_under_load(
    yard: Yard, releases: tuple[Release, Release]
) -> None:
    this, following = releases
    yard.roll(this, following, this)
    yard.check(this)
    lives = yard.written_in_each_life()
    writers = [name for name in WORKERS if name.startswith("writer")]
    assert all(lives.get(f"{name}.{life}", 0) for name in writers for life in (1, 2, 3)), lives
    with yard.server.client() as admin:
        names = sorted(library[1].decode() for library in admin.function_list())
        assert names == sorted([f"headwater_{VERSION}", f"headwater_{VERSION + 1}"])
        record = admin.hgetall(KEY)
        assert record[b"format"] == b"%d" % FORMAT, "this release is still there"
        assert f"{NEXT}:{VERSION + 1}:{FORMAT + 1}".encode() in record
        assert admin.hget(f"hw:s:{{{STREAM}}}", "format") == b"%d" % FORMAT
        assert b"tag" not in fields_of_tail(admin)


def test_a_newer_format_is_written_only_when_it_may_and_then_old_clients_get_one_clear_error(
    yard: Yard, releases: tuple[Release, Release]
) -> None:
    this, following = releases
    yard.roll(this)
    asleep = this.start(str(WORKER), json.dumps(yard.job("wake", "sleeper")))
    assert asleep.stdout is not None
    assert asleep.stdout.readline() == "connected\n"
    url = ("--store", yard.server.url)
    code, _, err = following.command("upgrade", "--yes", *url)
    assert code == 1
    assert "do not understand format 2" in err
    with yard.server.client() as admin:
        assert admin.hget(KEY, "format") == b"1"
        # Ten minutes later.
        for kind, seen in admin.hgetall(KEY).items():
            if kind.endswith(b":1"):
                admin.hset(KEY, kind, int(seen) - COUNTS_BY_HAND_MS)
        code, out, err = following.command("upgrade", "--yes", *url)
        assert (code, err) == (0, "")
        assert "format 2 is in use" in out
        yard.roll(following)
        yard.check(following)
        # The newest entry stays in the tail, whatever housekeepers sealed.
        assert following.command("stream", "write", STREAM, "t", "v", *url)[0] == 0
        assert b"tag" in fields_of_tail(admin)
        # Who was not seen for so long that nobody waited for it.
        before = admin.hget(f"hw:s:{{{STREAM}}}", "last")
        said, _ = asleep.communicate("go on\n")
        # The object says so; or the record, when a minute is over since it has noted itself.
        assert said.startswith(
            (f"FormatTooNew: stream '{STREAM}' at ", "FormatTooNew: the store at ")
        )
        assert "has format 2, and this release understands formats up to 1; upgrade" in said
        assert admin.hget(f"hw:s:{{{STREAM}}}", "last") == before
    code, out, err = this.command("stream", "list", *url)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "has format 2, and this release understands formats up to 1; upgrade" in err


def fields_of_tail(admin: Any) -> set[bytes]:
    entries = admin.xrange(f"hw:s:{{{STREAM}}}:tail")
    return {field for _, fields in entries for field in fields}
