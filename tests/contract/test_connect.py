"""Connecting: every kind of URL works, and what is wrong gives one clear error."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

import headwater
from headwater.errors import (
    StoreError,
    StoreUnreachable,
)
from headwater.store import aio_connections, connecting, connections, embedded
from headwater.store.directory import DIRECTORY_VARIABLE
from headwater.store.url import URL_VARIABLE
from tests.support.forwarder import Forwarder
from tests.support.locked import SAFE_PASSWORD
from tests.support.servers import Server, free_ports
from tests.support.stores import Stores, works
from tests.support.waking import check_quick

Dial = Callable[[str | None], headwater.Headwater]


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the answer of a new server no longer than a test may."""
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_S", 0.2)
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
