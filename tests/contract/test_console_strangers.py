"""A stranger at the console has what anonymous clients have, and learns nothing of the store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.kernel.declaring import Scope
from headwater.serve.console.service import Console
from headwater.serve.limits import HttpLimits
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiServer
from tests.support.stores import Stores

SIGN_IN = "/console/sign-in"


@pytest.fixture(scope="module")
def api(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    path = tmp_path_factory.mktemp("tokens") / "tokens.json"
    add_token(path, "root", {Scope.ADMIN: ["*"]})
    limits = HttpLimits(max_anonymous=2)
    with ApiServer(stores.url("plain"), TokenFile(path), limits, front=Console) as api:
        yield api


def head(port: int, *lines: str) -> bytes:
    """Send the head of a request, and return the first line of what is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sent:
        sent.sendall("\r\n".join([*lines, "Host: x", "", ""]).encode())
        return sent.makefile("rb").readline()


def test_the_root_leads_to_the_console(api: ApiServer) -> None:
    assert head(api.port, "GET / HTTP/1.1") == b"HTTP/1.1 303 See Other\r\n"


def test_who_asks_for_the_form_stays_anonymous(api: ApiServer) -> None:
    """The oldest of too many anonymous connections is closed, whatever it has asked for."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=60) as oldest:
        oldest.sendall(f"GET {SIGN_IN} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answered = oldest.makefile("rb")
        assert b" 401 " in answered.readline()
        others = [api.client() for _ in range(2)]
        assert [client.get(SIGN_IN).status for client in others] == [401, 401]
        # It reads to the end, which comes only when the server closes the connection.
        assert b"</html>" in answered.read()
        for client in others:
            client.close()


@pytest.mark.parametrize("length", ["Content-Length: 5000", "Transfer-Encoding: chunked"])
def test_no_large_form_of_a_stranger_is_read(api: ApiServer, length: str) -> None:
    answered = head(api.port, f"POST {SIGN_IN} HTTP/1.1", length)
    assert b" 401 " in answered


def test_a_stranger_does_not_learn_where_the_store_is(api: ApiServer, stores: Stores) -> None:
    client = api.client()
    shown = client.get(SIGN_IN).body.decode()
    assert stores.url("plain").partition("://")[2].split("?")[0] not in shown
    client.close()


@pytest.mark.parametrize("path", [Path("timed/none"), Path("streams/none/groups/none")])
def test_what_does_not_exist_is_no_outage(stores: Stores, path: Path) -> None:
    with ApiServer(stores.url("plain"), front=Console) as open_to_all:
        assert open_to_all.client().get(f"/console/{path}").status == 404


def test_an_action_is_shown_with_the_address_that_was_asked(stores: Stores) -> None:
    with ApiServer(stores.url("plain"), front=Console) as open_to_all:
        client = open_to_all.client()
        client.post("/v1/queues/strangers/messages", {"messages": [{"value": "x"}]})
        shown = client.get("/console/act?do=purge&queue=strangers").body.decode()
        assert f"http://127.0.0.1:{open_to_all.port}/v1/queues/strangers/purge" in shown
