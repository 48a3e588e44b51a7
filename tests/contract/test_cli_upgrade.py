"""``headwater upgrade`` shows who uses a store, and changes nothing that somebody needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

import headwater
from headwater.store import doctor, library
from headwater.store import library as library_module
from headwater.store.call import Call
from headwater.store.library import COUNTS_BY_HAND_MS, COUNTS_MS, FORMAT, KEY, VERSION
from headwater.views import stores
from tests.support.commands import Answer, run
from tests.support.libraries import library_of
from tests.support.servers import Cluster, Server

OLD = f"0.0.1:{VERSION - 1}:{FORMAT}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        headwater.connect(server.url).close()
        yield server


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with server.client() as admin:
        yield admin


@pytest.fixture
def next_format(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """From now on this process is of a release that understands one format more."""
    for module in (library_module, library, doctor, stores):
        monkeypatch.setattr(module, "FORMAT", FORMAT + 1)
    ours = Call("hw_store_note", KEY, ("999.0", VERSION, FORMAT + 1, COUNTS_MS))
    monkeypatch.setattr("headwater.store.store.NOTE", ours)
    library_module.library.cache_clear()
    yield server
    library_module.library.cache_clear()


def see(admin: redis.Redis, kind: str, ms_ago: int) -> None:
    seconds, micros = admin.time()
    admin.hset(KEY, kind, seconds * 1000 + micros // 1000 - ms_ago)


def upgrade(server: Server | Cluster, *words: str) -> Answer:
    return run(server.url, "upgrade", *words)


def test_it_shows_clients_and_libraries(server: Server, admin: redis.Redis) -> None:
    see(admin, OLD, 3 * 3600 * 1000)
    admin.function_load(library_of("0.0.1", VERSION - 1))
    answer = upgrade(server)
    assert answer.code == 0
    assert "3 h ago" in answer.out
    assert f"headwater_{VERSION - 1}, headwater_{VERSION}; format {FORMAT} is in use" in answer.out
    assert "nothing to upgrade" in answer.out
    shown = upgrade(server, "--json").row
    assert [client["release"] for client in shown["clients"]] == ["0.0.1", headwater.__version__]
    assert (shown["libraries"], shown["unused"]) == ([VERSION - 1, VERSION], [])


def test_a_library_that_nobody_uses_is_removed_only_when_asked(
    server: Server, admin: redis.Redis
) -> None:
    admin.function_load(library_of("0.0.1", VERSION - 1))
    assert f"Nobody was seen to use headwater_{VERSION - 1}" in upgrade(server).out
    assert upgrade(server, "--json").row["libraries"] == [VERSION - 1, VERSION]
    assert "nothing to upgrade" in upgrade(server, "--yes").out
    assert upgrade(server, "--json").row["libraries"] == [VERSION]


def test_a_library_that_somebody_uses_stays(server: Server, admin: redis.Redis) -> None:
    admin.function_load(library_of("0.0.1", VERSION - 1))
    see(admin, OLD, COUNTS_MS - 3_600_000)
    upgrade(server, "--yes")
    assert upgrade(server, "--json").row["libraries"] == [VERSION - 1, VERSION]


@pytest.mark.cluster
def test_libraries_are_removed_from_every_node_that_has_them() -> None:
    with Cluster() as cluster:
        with cluster.nodes[1].client() as admin:
            admin.function_load(library_of("0.0.1", VERSION - 1))
        headwater.connect(cluster.url).close()
        assert upgrade(cluster, "--yes", "--json").row["libraries"] == [VERSION]
        with cluster.nodes[1].client() as admin:
            assert len(admin.function_list()) == 1


def test_a_newer_format_waits_for_a_yes(next_format: Server, admin: redis.Redis) -> None:
    server = next_format
    see(admin, f"{headwater.__version__}:{VERSION}:{FORMAT}", COUNTS_BY_HAND_MS + 60_000)
    shown = upgrade(server)
    assert f"Format {FORMAT + 1} could be put to use" in shown.out
    assert f"Clients of release {headwater.__version__} would be refused" in shown.out
    assert admin.hget(KEY, "format") == b"%d" % FORMAT
    done = upgrade(server, "--yes", "--json").row
    assert (done["format"], done["done"]) == (FORMAT + 1, True)
    assert admin.fcall(f"hw{VERSION}_version", 0).endswith(b":%d" % (FORMAT + 1))


def test_a_newer_format_is_refused_while_older_clients_are_there(
    next_format: Server, admin: redis.Redis
) -> None:
    server = next_format
    see(admin, f"{headwater.__version__}:{VERSION}:{FORMAT}", 0)
    refused = upgrade(server, "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert f"clients of release {headwater.__version__} do not understand" in refused.err
    assert admin.hget(KEY, "format") == b"%d" % FORMAT
    assert upgrade(server, "--yes", "--force").code == 0
    assert admin.hget(KEY, "format") == b"%d" % (FORMAT + 1)


def test_a_user_who_may_not_list_functions_is_told_so(server: Server, admin: redis.Redis) -> None:
    admin.execute_command("ACL", "SETUSER", "default", "-function|list")
    answer = upgrade(server)
    assert (answer.code, answer.out) == (1, "")
    assert "denies access" in answer.err
