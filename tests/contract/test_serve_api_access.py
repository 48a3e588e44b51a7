"""Every route is for those alone whose token has its scope on its name, before a body is read."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.kernel.declaring import Scope
from headwater.serve.api.routes import EVENTS, Route
from headwater.serve.api.table import ROUTES
from headwater.serve.tokens import TokenFile, add_token
from tests.support.api import ApiServer, messages_of
from tests.support.stores import Stores

HOLDERS = {
    "reader": {Scope.READ: ["mine-*"]},
    "writer": {Scope.WRITE: ["mine-*"]},
    "admin": {Scope.ADMIN: ["mine-*"]},
    "root": {Scope.ADMIN: ["*"]},
}
CHANGING = [route for route in ROUTES if route.scope and route.scope > Scope.READ]


class Guarded:
    """A server with tokens, and the token of each holder."""

    def __init__(self, url: str, folder: Path, **words: Any) -> None:
        path = folder / "tokens.json"
        self.tokens = {who: add_token(path, who, given) for who, given in HOLDERS.items()}
        self.api = ApiServer(url, TokenFile(path), **words)

    def status(self, who: str | None, route: Route, name: str) -> int:
        client = self.api.client(self.tokens.get(who or "", who))
        path = route.path.replace(f"{{{(route.parameters or ('',))[0]}}}", name)
        for parameter in route.parameters[1:]:
            path = path.replace(f"{{{parameter}}}", "other")
        status = client.ask(route.method, path).status
        client.close()
        return status


@pytest.fixture(scope="module")
def guarded(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(stores.url("plain"), tmp_path_factory.mktemp("tokens"))
    with guarded.api:
        yield guarded


def label(route: Route) -> str:
    return route.operation


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scope], ids=label)
def test_a_route_asks_for_its_scope_on_its_name(guarded: Guarded, route: Route) -> None:
    assert route.scope
    name = f"mine-{secrets.token_hex(4)}"
    assert guarded.status(None, route, name) == 401
    assert guarded.status("hw_unknown", route, name) == 401
    for who, given in HOLDERS.items():
        widest = max(given)
        allowed = widest >= route.scope and (not route.whole_store or who == "root")
        if route.answers != (EVENTS,):  # a tail would not end
            assert (guarded.status(who, route, name) not in (401, 403)) is allowed, who
        if route.parameters and who != "root":
            assert guarded.status(who, route, "yours") == 403, who
    if route.scope > Scope.READ and route.parameters:
        assert guarded.status("root", route, "hw.audit") == 403, "only servers write there"


@pytest.mark.parametrize("route", [route for route in ROUTES if not route.scope], ids=label)
def test_what_everybody_may_ask_needs_no_token(guarded: Guarded, route: Route) -> None:
    assert guarded.status(None, route, "x") == 200


def test_a_body_of_somebody_without_the_right_is_not_read(guarded: Guarded) -> None:
    for token in ("", f"Authorization: Bearer {guarded.tokens['reader']}\r\n"):
        with socket.create_connection(("127.0.0.1", guarded.api.port)) as raw:
            raw.settimeout(30)
            raw.sendall(
                f"POST {messages_of('mine-x')} HTTP/1.1\r\nHost: x\r\n{token}"
                "Content-Length: 1000000\r\n\r\n".encode()
            )
            status = raw.recv(65536).split()[1]
            assert status == (b"403" if token else b"401")


def test_a_token_that_is_not_known_is_told_apart_from_none(guarded: Guarded) -> None:
    for token, reason in ((None, "this needs a token"), ("hw_unknown", "is not known here")):
        client = guarded.api.client(token)
        answer = client.get("/v1/streams")
        client.close()
        assert reason in answer.body["detail"]


@pytest.mark.parametrize("route", CHANGING, ids=label)
def test_a_read_only_server_changes_nothing_whoever_asks(read_only: Guarded, route: Route) -> None:
    assert read_only.status("root", route, "mine-x") == 403


@pytest.fixture(scope="module")
def read_only(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(stores.url("plain"), tmp_path_factory.mktemp("tokens"), read_only=True)
    with guarded.api:
        yield guarded


def test_a_token_that_asks_too_often_is_told_to_wait(stores: Stores, tmp_path: Path) -> None:
    guarded = Guarded(stores.url("plain"), tmp_path, requests_per_s=3)
    with guarded.api:
        client = guarded.api.client(guarded.tokens["reader"])
        answers = [client.get("/v1/streams/mine-x/messages") for _ in range(10)]
        refused = [answer for answer in answers if answer.status == 429]
        assert [answer.status for answer in answers[:3]] == [200] * 3
        assert refused
        assert refused[0].headers["retry-after"] == "1"
        other = guarded.api.client(guarded.tokens["writer"])
        assert other.get("/v1/streams/mine-x/messages").status == 200
        client.close()
        other.close()


def test_every_change_by_an_admin_is_in_the_audit(guarded: Guarded) -> None:
    name = f"mine-{secrets.token_hex(4)}"
    root = guarded.api.client(guarded.tokens["root"])
    admin = guarded.api.client(guarded.tokens["admin"])
    root.post(messages_of(name), [{"value": "x"}] * 3)
    admin.ask("POST", f"/v1/streams/{name}/evict", {"up_to": 2}, headers={"X-Request-ID": "r-1"})
    admin.ask("POST", f"/v1/streams/{name}/evict", {"up_to": 0.5})
    admin.ask("DELETE", f"/v1/streams/{name}")
    path = messages_of("hw.audit", "?count=10000")
    lines = root.get(path, accept="application/x-ndjson").body.splitlines()
    notes = [note_of(line) for line in lines if name.encode() in line]
    assert [(note["outcome"], note["what"]) for note in notes] == [
        ("begun", "evict_stream"),
        ("done", "evict_stream"),
        ("begun", "delete_stream"),
        ("done", "delete_stream"),
    ], "what was refused before it began changed nothing, and is not noted"
    evict, done, _, deleted = notes
    assert (evict["who"], evict["request_id"]) == ("admin", "r-1")
    assert evict["asked"] == {"up_to": 2, "past_readers": True}
    assert (evict["before"]["first"], done["after"]["first"]) == (1, 3)
    assert "after" not in deleted
    root.close()
    admin.close()


def test_a_change_that_is_refused_on_the_way_is_noted_as_failed(guarded: Guarded) -> None:
    root = guarded.api.client(guarded.tokens["root"])
    asked = f"r-{secrets.token_hex(4)}"
    path = "/v1/streams/mine-x/replays/none"
    assert root.ask("DELETE", path, headers={"X-Request-ID": asked}).status == 404
    lines = root.get(messages_of("hw.audit", "?count=10000"), accept="application/x-ndjson").body
    notes = [note_of(line) for line in lines.splitlines() if asked.encode() in line]
    assert [note["outcome"] for note in notes] == ["begun", "failed"]
    assert "there is no such replay" in notes[1]["error"]
    root.close()


def note_of(line: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.loads(line)["value"])
    return found
