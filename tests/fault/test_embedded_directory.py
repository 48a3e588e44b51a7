"""The embedded server belongs to its directory: when that is gone, so is the server, at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import headwater
from headwater.errors import EmbeddedServerFailed, HeadwaterError, OutcomeUnknown
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import kill_supervisor, linux_only
from tests.support.servers import until
from tests.support.waking import check_quick

pytestmark = pytest.mark.fault


def remove(directory: Path) -> None:
    shutil.rmtree(directory)


def remove_contents(directory: Path) -> None:
    for entry in directory.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def remove_data(directory: Path) -> None:
    shutil.rmtree(directory / supervisor.AOF_DIRECTORY)


def move(directory: Path) -> None:
    directory.rename(directory.with_name("moved"))


def move_parent(directory: Path) -> None:
    directory.parent.rename(directory.parent.with_name("moved-parent"))


def restore(directory: Path) -> None:
    """Put a snapshot in the place of the directory, as a restore does."""
    snapshot = directory.with_name("snapshot")
    shutil.copytree(directory, snapshot, ignore=shutil.ignore_patterns(supervisor.SOCKET))
    directory.rename(directory.with_name("old"))
    snapshot.rename(directory)


def restore_data(directory: Path) -> None:
    """Replace the files of the store one by one, as rsync does."""
    for file in (directory / supervisor.AOF_DIRECTORY).iterdir():
        copy = file.with_name(f".{file.name}.new")
        shutil.copy(file, copy)
        copy.replace(file)


def write_until_refused(stream: headwater.Stream, seconds: float = 30) -> HeadwaterError:
    """Write on; return the first error, which comes within so many seconds."""
    until = time.monotonic() + seconds
    try:
        while stream.write("a", b"after"):
            assert time.monotonic() < until, "writes are still acknowledged"
    except HeadwaterError as error:
        return error
    raise AssertionError


LOSSES = [remove, remove_contents, remove_data, move, restore, restore_data]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
def test_no_write_is_acknowledged_after_the_directory_is_lost(
    directory: Path, lose: Callable[[Path], None]
) -> None:
    attempts = count()

    def took_ms() -> float:
        place = directory.with_name(str(next(attempts))) / "data"
        with headwater.connect(f"embedded://{place}") as hw:
            stream = hw.stream("rides")
            stream.write("a", b"before")
            lose(place)
            begun = time.monotonic()
            error = write_until_refused(stream)
            took = (time.monotonic() - begun) * 1000
            # The call that was under way is uncertain; from then on the error says what happened.
            if isinstance(error, OutcomeUnknown):
                error = write_until_refused(stream, seconds=0)
            assert isinstance(error, EmbeddedServerFailed)
            said = str(error)
            assert str(place) in said
            assert "removed, moved or replaced" in said
            assert "connect again" in said
        return took

    check_quick(took_ms, 2000)


def test_an_async_client_is_told_the_same(directory: Path) -> None:
    async def use() -> None:
        async with headwater.aio.connect(f"embedded://{directory}") as hw:
            stream = hw.stream("rides")
            await stream.write("a", b"before")
            remove(directory)
            until = time.monotonic() + 30
            with pytest.raises((OutcomeUnknown, EmbeddedServerFailed)):  # noqa: PT012
                while await stream.write("a", b"after"):
                    assert time.monotonic() < until, "writes are still acknowledged"
            async with headwater.aio.connect(f"embedded://{directory}") as fresh:
                await fresh.stream("rides").write("a", b"new")
                with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced"):
                    await stream.write("a", b"of the old client")

    asyncio.run(use())


def test_who_connects_after_a_loss_gets_what_is_there_now(directory: Path) -> None:
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"before")
        remove(directory)
        with headwater.connect(f"embedded://{directory}") as fresh:
            assert fresh.streams() == []
            fresh.stream("rides").write("a", b"new")
            with pytest.raises(HeadwaterError):
                hw.stream("rides").write("a", b"of the old client")
            assert fresh.stream("rides").info().last == 1


def test_a_directory_that_is_put_back_is_used_again(directory: Path) -> None:
    moved = directory.with_name("moved")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
        directory.rename(moved)
        write_until_refused(hw.stream("rides"))
        moved.rename(directory)
        last = hw.stream("rides").info().last
        assert hw.stream("rides").write("a", b"two") == last + 1


def test_a_directory_moved_at_a_higher_level_ends_the_server(tmp_path: Path) -> None:
    directory = tmp_path / "above" / "data"
    server = EmbeddedServer.open(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    move_parent(directory)
    fcntl.flock(lock, fcntl.LOCK_SH)
    lock.close()
    with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced"):
        server.ensure_running()
    server.close()


def test_a_server_that_stays_is_watched_too(directory: Path) -> None:
    embedded.start(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    remove(directory)
    fcntl.flock(lock, fcntl.LOCK_SH)
    lock.close()


@linux_only
@pytest.mark.parametrize("stays", [False, True])
def test_a_server_whose_supervisor_was_killed_is_watched_by_the_next_one(
    directory: Path, stays: bool
) -> None:
    if stays:
        embedded.start(directory)
    with headwater.connect(f"embedded://{directory}") as hw:
        kill_supervisor(directory)
        with headwater.connect(f"embedded://{directory}"):
            until(lambda: not supervisor.is_free(directory / supervisor.SUPERVISOR_LOCK))
            # The supervisor needs no connection of its own to end the server.
            hw.store.command("CLIENT", "KILL", "TYPE", "normal")
            lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
            remove(directory)
            until(lambda: supervisor.try_lock(lock, fcntl.LOCK_EX))
            lock.close()


@linux_only
def test_a_directory_that_is_removed_before_its_next_supervisor_watches_it_ends_the_server(
    directory: Path,
) -> None:
    program = (
        "import os, sys\n"
        "from headwater.store import supervisor\n"
        "detach = supervisor._detach\n"
        "supervisor._detach = lambda: (detach(), os.read(int(sys.argv[1]), 1))\n"
        "sys.exit(supervisor.main('adopt', sys.argv[2]))\n"
    )
    embedded.start(directory)
    kill_supervisor(directory)
    lock = supervisor.lock_file(directory / supervisor.SERVER_LOCK)
    begin, order = os.pipe()
    words = [sys.executable, "-c", program, str(begin), str(directory)]
    subprocess.run(words, pass_fds=[begin], start_new_session=True, check=True)
    remove(directory)
    os.write(order, b"!")
    until(lambda: supervisor.try_lock(lock, fcntl.LOCK_EX))
    for end in (begin, order):
        os.close(end)
    lock.close()


def test_a_parent_directory_that_cannot_be_read_is_no_obstacle(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every directory")
    directory = tmp_path / "above" / "data"
    directory.mkdir(parents=True, mode=0o700)
    directory.parent.chmod(0o311)
    with EmbeddedServer.open(directory):
        assert embedded.status(directory).running
    directory.parent.chmod(0o700)


def test_a_rewrite_of_the_file_is_no_loss(directory: Path) -> None:
    ended = threading.Event()
    with headwater.connect(f"embedded://{directory}") as hw:
        pid = embedded.status(directory).pid

        def write() -> None:
            while not ended.is_set():
                hw.stream("rides").write_many([("a", b"x" * 100)] * 50)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(10):
                with suppress(Exception):
                    hw.store.command("BGREWRITEAOF")
                until = time.monotonic() + 20
                while b"aof_rewrite_in_progress:1" in hw.store.command("INFO", "persistence")[0]:
                    assert time.monotonic() < until
        finally:
            ended.set()
            writer.join()
        assert embedded.status(directory).pid == pid


def test_a_copy_is_a_store_of_its_own(directory: Path) -> None:
    copy = directory.with_name("copy")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
        shutil.copytree(directory, copy, ignore=shutil.ignore_patterns(supervisor.SOCKET))
        with headwater.connect(f"embedded://{copy}") as other:
            other.stream("rides").write("a", b"two")
            assert other.stream("rides").info().last == 2
        assert hw.stream("rides").info().last == 1


def test_a_copy_by_hard_links_is_refused(directory: Path) -> None:
    copy = directory.with_name("copy")
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("rides").write("a", b"one")
    embedded.stop(directory)
    shutil.copytree(directory, copy, copy_function=os.link)
    with pytest.raises(EmbeddedServerFailed, match="hard links"):
        EmbeddedServer.open(copy)


def test_a_file_system_that_does_not_keep_locks_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(EmbeddedServerFailed, match="does not keep locks"):
        EmbeddedServer.open(directory)


def test_a_file_system_that_cannot_lock_is_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EmbeddedServerFailed, match="No locks available"):
        EmbeddedServer.open(directory)


@linux_only
@pytest.mark.parametrize("lose", [remove, restore])
def test_a_worker_whose_directory_is_gone_ends_with_the_error(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    directory = tmp_path / "store"
    handled = threading.Event()
    with headwater.connect(f"embedded://{directory}") as hw:
        hw.stream("s").write("a", b"before")
        worker = headwater.Worker(hw.stream("s").group("g"), lambda _: handled.set())

        def run() -> None:
            with pytest.raises(EmbeddedServerFailed, match="removed, moved or replaced") as caught:
                worker.run()
            assert caught.value.lasting
            ended.set()

        ended = threading.Event()
        thread = threading.Thread(target=run)
        thread.start()
        assert handled.wait(60)
        lose(directory)
        assert ended.wait(60)
        thread.join()
    embedded.stop(directory, now=True)
