"""How the embedded server starts, and how any number of processes share it."""

from __future__ import annotations

import os
import shutil
import time
from itertools import count
from pathlib import Path

import pytest

from headwater.store import embedded, supervisor
from headwater.store.embedded import EmbeddedServer
from tests.support.embedded import User, client, lay_out, linux_only, pid_of
from tests.support.processes import sockets
from tests.support.waking import check_quick

pytestmark = pytest.mark.fault


def test_a_server_starts_from_nothing_in_under_a_second(directory: Path) -> None:
    attempts = count()

    def took_ms() -> float:
        fresh = directory.with_name(f"fresh-{next(attempts)}")
        begin = time.perf_counter()
        server = EmbeddedServer.open(fresh)
        took = (time.perf_counter() - begin) * 1000
        server.close()
        embedded.stop(fresh)
        return took

    check_quick(took_ms, 1000)


def test_open_creates_a_private_directory_with_a_durable_server_in_it(directory: Path) -> None:
    with EmbeddedServer.open(directory / "a" / "b") as server:
        assert server.directory == directory / "a" / "b"
        settings = client(server).config_get(
            "port", "appendonly", "appendfsync", "aof-load-truncated", "maxmemory-policy", "save"
        )
        modes = {
            entry.name: entry.stat().st_mode & 0o777
            for entry in [server.directory, *server.directory.rglob("*")]
        }
        directories = {"b", supervisor.AOF_DIRECTORY}
        assert {name for name, mode in modes.items() if mode & 0o100} == {
            *directories,
            supervisor.SOCKET,
        }
        assert not any(mode & 0o077 for mode in modes.values()), modes
    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "no",
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    embedded.stop(server.directory)


@linux_only
def test_the_server_listens_on_nothing_but_its_socket(directory: Path) -> None:
    with EmbeddedServer.open(directory):
        process = Path("/proc", str(pid_of(directory)))
        opened = sockets(pid_of(directory))
        internet = {
            row.split()[9]
            for table in ("tcp", "tcp6", "udp", "udp6")
            if (process / "net" / table).exists()
            for row in (process / "net" / table).read_text().splitlines()[1:]
        }
        assert opened
        assert not opened & internet


def test_a_second_process_attaches_to_the_running_server(directory: Path) -> None:
    with EmbeddedServer.open(directory) as server:
        client(server).set("one", 1)
        user = User(directory)
        assert user.server_pid() == pid_of(directory)
        user.rest()
        assert client(server).get("one") == b"1"


def test_ten_processes_that_open_at_once_share_one_server(directory: Path) -> None:
    users = [User(directory) for _ in range(10)]
    pids = {user.server_pid() for user in users}
    for user in users:
        user.rest()
    assert len(pids) == 1


@pytest.mark.parametrize("kind", ["long", "not ASCII", "with spaces and ${signs}"])
def test_the_directory_may_have_any_name_and_length(directory: Path, kind: str) -> None:
    name = {"long": "x" * 200, "not ASCII": "Übung-流"}.get(kind, kind)
    with EmbeddedServer.open(directory / name) as server:
        assert len(os.fsencode(server.socket_path)) < 104
        assert client(server).set("one", 1)
        user = User(directory / name)
        assert user.server_pid() == pid_of(directory / name)
        user.rest()
    embedded.stop(directory / name)
    link = Path(server.socket_path).parent
    if kind == "long":
        # A link that leads elsewhere, or is gone, is made anew.
        for elsewhere in (True, False):
            link.unlink()
            if elsewhere:
                link.symlink_to(directory)
            with EmbeddedServer.open(directory / name) as server:
                assert client(server).get("one") == b"1"
                link.unlink()
                server.ensure_running()
                assert client(server).get("one") == b"1"
            embedded.stop(directory / name)
        embedded.discard(directory / name)
        assert not link.is_symlink(), "nothing is left of it"


def test_an_open_waits_until_a_large_file_is_loaded(directory: Path) -> None:
    commands = 1_000_000
    lay_out(directory, b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n" * commands)
    users = [User(directory) for _ in range(2)]
    with EmbeddedServer.open(directory) as server:
        assert client(server).get("n") == str(commands).encode()
    assert len({user.server_pid() for user in users}) == 1
    for user in users:
        user.rest()


@pytest.mark.skipif(not shutil.which("redis-server"), reason="there is no redis-server on the PATH")
def test_the_server_program_can_be_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.SERVER_VARIABLE, "redis-server")
    with EmbeddedServer.open(directory) as server:
        assert client(server).info("server").get("valkey_version") is None
        assert embedded.status(directory).version
