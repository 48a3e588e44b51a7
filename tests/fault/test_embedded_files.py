"""Which files the embedded server takes, which it repairs, and which it refuses."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from headwater.errors import EmbeddedServerFailed, InvalidInput
from headwater.store import directory as directories
from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import SET_ONE, client, is_gone, lay_out, newest_file
from tests.support.servers import until

pytestmark = pytest.mark.fault


@pytest.mark.parametrize(
    "zeros", [0, 5000, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 200_000))]
)
@pytest.mark.parametrize("transaction", [False, True])
def test_a_half_written_tail_is_cut(directory: Path, transaction: bool, zeros: int) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        file = newest_file(directory)
        whole = file.stat().st_size
        with client(server).pipeline(transaction=transaction) as both:
            both.set("two", b"\0" * 100)
            both.set("three", 3)
            both.execute()
        # Take the last command's end away, as if the machine had failed while it was written.
        size = file.stat().st_size
    until(lambda: is_gone(directory))
    # With 7 and, in a transaction, 21 bytes less the file ends behind an argument.
    for cut in (1, 7, 21, size - whole - 1):
        copy = directory.with_name(f"cut-{cut}")
        shutil.copytree(directory, copy)
        os.truncate(newest_file(copy), size - cut)
        with newest_file(copy).open("ab") as tail:
            tail.write(b"\0" * zeros)
        with EmbeddedServer.open(copy) as server:
            assert client(server).get("one") == b"1"
            assert client(server).get("three") is None
            if transaction:
                assert client(server).get("two") is None
            client(server).set("four", 4)
        (aside,) = copy.glob("cut-*.aof")
        assert f"they are kept in {aside.name}" in (copy / supervisor.LOG).read_text()
        embedded.stop(copy)
        with EmbeddedServer.open(copy) as server:
            assert client(server).mget("one", "three", "four") == [b"1", None, b"4"]
        embedded.stop(copy)


@pytest.mark.parametrize("damage", [b"garbage!", b"\0" * 8], ids=["garbage", "zeros"])
def test_damage_before_the_tail_is_refused_and_left_as_it_is(
    directory: Path, damage: bytes
) -> None:
    stored = SET_ONE + damage + SET_ONE
    file = lay_out(directory, stored)
    with pytest.raises(EmbeddedServerFailed) as refused:
        EmbeddedServer.open(directory)
    assert "Bad file format" in str(refused.value)
    assert f"is damaged at byte {len(SET_ONE)}" in str(refused.value)
    assert "Restore the directory from a backup" in str(refused.value)
    assert file.read_bytes() == stored
    until(lambda: is_gone(directory))


def test_a_server_that_cannot_run_is_named_with_its_own_words(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(embedded.SERVER_VARIABLE, "no-such-program")
    with pytest.raises(EmbeddedServerFailed, match="names 'no-such-program'"):
        EmbeddedServer.open(directory)
    program = directory.with_name("server")
    program.write_text("#!/bin/sh\necho I will not serve\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv(embedded.SERVER_VARIABLE, str(program))
    with pytest.raises(EmbeddedServerFailed, match="I will not serve"):
        EmbeddedServer.open(directory)
    program.write_text("neither a script nor a program")
    with pytest.raises(EmbeddedServerFailed, match="Exec format error"):
        EmbeddedServer.open(directory)


@pytest.mark.parametrize("name", ["", "nul\0byte"])
def test_a_name_that_cannot_be_a_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        EmbeddedServer.open(name)


def test_a_directory_that_cannot_be_private_is_refused(directory: Path) -> None:
    directory.mkdir()
    file = directory / "file"
    file.touch()
    with pytest.raises(EmbeddedServerFailed, match="is not a directory"):
        EmbeddedServer.open(file)
    with pytest.raises(EmbeddedServerFailed, match="Not a directory"):
        EmbeddedServer.open(file / "below")
    directory.chmod(0o777)
    with pytest.raises(EmbeddedServerFailed, match="others may write to it"):
        EmbeddedServer.open(directory)
    assert directory.stat().st_mode & 0o777 == 0o777
    foreign = Path("/")
    if os.geteuid() == 0:
        foreign = directory
        os.chown(directory, 12345, -1)
    with pytest.raises(EmbeddedServerFailed, match="belongs to user"):
        EmbeddedServer.open(foreign)
    if os.geteuid() == 0:
        os.chown(directory, 0, -1)
    else:
        directory.chmod(0o500)
        with pytest.raises(EmbeddedServerFailed, match="cannot be written"):
            EmbeddedServer.open(directory)
        directory.chmod(0o700)


def test_an_empty_directory_is_made_private(directory: Path) -> None:
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    with EmbeddedServer.open(directory):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_the_default_directory_comes_from_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(directories.DIRECTORY_VARIABLE, str(directory))
    assert directories.default_directory() == directory
    monkeypatch.delenv(directories.DIRECTORY_VARIABLE)
    assert directories.default_directory() == Path.cwd() / ".headwater"
