"""Every command needs the scope of its table on the names that it touches, and nothing less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest

import headwater
from headwater.kernel.declaring import Scope
from headwater.serve.limits import RespLimits
from headwater.serve.resp.table import COMMANDS
from headwater.serve.tokens import TokenFile, add_token, remove_token
from tests.support.resp import RawClient, RespServer
from tests.support.servers import until
from tests.support.stores import Stores

# Commands on NAME whose arguments matter here; of the others, any arguments do.
WORDS: dict[str, list[str]] = {
    "TWRITE": ["TWRITE NAME t v", "TWRITE NAME ENTRIES t v", "TWRITE NAME BACKLOG 5 ENTRIES t v"],
    "TREAD": ["TREAD NAME 1 1", "TREAD NAME 1 1 BLOCK 1"],
    "TREAD GROUP": ["TREAD NAME 1 1 GROUP g", "TREAD NAME 1 1 group g retry 1000 0"],
    "TINFO": ["TINFO NAME", "TINFO NAME GROUP g"],
    "TLIMIT": ["TLIMIT NAME g OFF", "TLIMIT NAME g INFLIGHT 5"],
    "TPWRITE": ["TPWRITE NAME t v", "TPWRITE NAME ENTRIES t v"],
    "TPREAD": ["TPREAD NAME g 1", "TPREAD NAME g 1 BLOCK 1"],
    "TPSEEK": ["TPSEEK NAME g 1", "TPSEEK NAME g 0:1"],
    "TPINFO": ["TPINFO NAME", "TPINFO NAME GROUP g"],
    "QPUSH": ["QPUSH NAME v", "QPUSH NAME VALUES v"],
    "QACK": ["QACK NAME 1:0:1:1.1"],
    "QNACK": ["QNACK NAME 1:0:1:1.1"],
    "QEXTEND": ["QEXTEND NAME 1000 1:0:1:1.1"],
    "CHCOMMIT": ["CHCOMMIT NAME 1:0:1:1000 1 m"],
    "CHRELEASE": ["CHRELEASE NAME 1:0:1:1000 1 m"],
    "CHRENEW": ["CHRENEW NAME 1:0:1:1000"],
    "TLINSERT": ["TLINSERT NAME 1 m", "TLINSERT NAME 1 m NAME-2 1 m"],
}
WORDS |= {
    command.name: [" ".join([command.name, "NAME", *["1"] * (abs(command.arity) - 2)])]
    for command in COMMANDS.values()
    if command.keys and command.name not in WORDS
}
# Rights are looked at before arguments: any will do.
WORDS |= {
    command.name: [" ".join([command.name, "NAME", *["1"] * (abs(command.arity) - 2)])]
    for command in COMMANDS.values()
    if command.keys and command.name not in WORDS
}
NEEDED = {name: COMMANDS[name.split()[0].encode()].scope for name in WORDS} | {
    "TREAD GROUP": Scope.WRITE
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens") / "tokens.json"


@pytest.fixture(scope="module")
def tokens(file: Path) -> dict[Scope, str]:
    """One token of each scope, on names that begin with ``orders-``."""
    return {scope: add_token(file, scope.name, {scope: ["orders-*"]}) for scope in Scope}


@pytest.fixture(scope="module")
def guarded(stores: Stores, file: Path, tokens: dict[Scope, str]) -> Iterator[RespServer]:
    assert tokens
    with RespServer(stores.url("plain"), TokenFile(file), RespLimits(max_anonymous=5)) as door:
        yield door


def refused(client: RawClient, line: str) -> bool:
    """Return whether a command is refused for want of a right."""
    reply = client.ask(*line.split())
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOPERM")


@pytest.mark.parametrize("scope", Scope)
def test_a_token_allows_what_its_scope_and_its_names_do(
    guarded: RespServer, tokens: dict[Scope, str], name: str, scope: Scope
) -> None:
    with guarded.raw() as client:
        assert client.ask("AUTH", tokens[scope]) == b"OK"
        for command, lines in WORDS.items():
            needed = NEEDED[command]
            assert needed is not None
            for line in lines:
                mine, other = (line.replace("NAME", f"{kind}-{name}") for kind in ("orders", "no"))
                assert refused(client, mine) == (scope < needed), mine
                assert refused(client, other), other
        assert refused(client, "TLINSERT orders-a 1 m other-b 1 m")
        assert refused(client, "TWRITE hw.audit t v")
        assert refused(client, "CLIENT LIST")
        assert client.ask("PING") == b"PONG"


def test_without_a_token_nothing_but_a_handshake_is_answered(guarded: RespServer) -> None:
    open_to_all = {"HELLO", "AUTH", "QUIT", "RESET"}
    with guarded.raw() as client:
        for command in set(COMMANDS.values()):
            if command.name not in open_to_all:
                words = [command.name, *["1"] * (abs(command.arity) - 1)]
                assert str(client.ask(*words)) == "NOAUTH Authentication required.", command.name
        assert str(client.ask("HELLO", "3")).startswith("NOAUTH HELLO must be called with")
        wrong = "WRONGPASS invalid username-password pair or user is disabled."
        assert str(client.ask("AUTH", "nonsense")) == wrong
        assert str(client.ask("HELLO", "3", "AUTH", "default", "nonsense")) == wrong
        assert str(client.ask("TREAD", "orders-1", 1, 1)).startswith("NOAUTH")


def test_a_client_logs_in_by_auth_and_by_hello(
    guarded: RespServer, tokens: dict[Scope, str]
) -> None:
    token = tokens[Scope.READ]
    for words in (("AUTH", token), ("AUTH", "default", token), ("HELLO", "3", "AUTH", "x", token)):
        with guarded.raw() as client:
            client.ask(*words)
            assert client.ask("PING") == b"PONG"
            assert client.ask("RESET") == b"RESET"
            assert str(client.ask("PING")).startswith("NOAUTH")
    with guarded.redis(password=token) as redis_py:
        assert redis_py.ping()


def test_a_token_that_is_removed_ends_what_it_allowed(
    stores: Stores, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "tokens.json"
    add_token(file, "keeper", {Scope.ADMIN: ["*"]})
    token = add_token(file, "leaver", {Scope.WRITE: ["*"]})
    now = [0.0]
    known = TokenFile(file, clock=lambda: now[0])
    with RespServer(stores.url("plain"), known) as door, door.raw() as client:
        client.ask("AUTH", token)
        assert client.ask("TWRITE", name, "t", "v") == 1
        remove_token(file, "leaver")
        now[0] = 10.0
        assert str(client.ask("TWRITE", name, "t", "v")).startswith("NOAUTH")


@pytest.mark.parametrize(
    "line",
    [
        "TREAD NAME 2 1 BLOCK 0",
        "TREAD NAME 0 1 GROUP g START LAST BLOCK 0",
        "QPOP NAME BLOCK 0",
    ],
)
def test_who_is_blocked_when_its_token_is_removed_gets_nothing_more(
    stores: Stores, tmp_path: Path, name: str, line: str
) -> None:
    file = tmp_path / "tokens.json"
    keeper = add_token(file, "keeper", {Scope.ADMIN: ["*"]})
    token = add_token(file, "leaver", {Scope.WRITE: ["*"]})
    with (
        RespServer(stores.url("plain"), TokenFile(file)) as door,
        door.raw() as client,
        door.raw() as other,
    ):
        other.ask("AUTH", keeper)
        other.ask("TWRITE", name, "t", "first")
        client.ask("AUTH", token)
        client.send(line.replace("NAME", name).encode() + b"\r\n")
        until(lambda: b"blocked_clients:1\r" in other.ask("INFO", "clients"))
        remove_token(file, "leaver")
        assert str(client.read()) == "NOAUTH Authentication required."
        until(lambda: b"blocked_clients:0\r" in other.ask("INFO", "clients"))
        other.ask("QPUSH", name, "v")
        assert other.ask("QPOP", name)[0][1] == b"v", "it has left nothing behind"


def test_every_change_by_admin_scope_is_in_the_audit(
    stores: Stores, guarded: RespServer, tokens: dict[Scope, str], name: str
) -> None:
    name = f"orders-{name}"
    admin = {command.name for command in COMMANDS.values() if command.scope is Scope.ADMIN}
    assert {command.name for command in COMMANDS.values() if command.look} == admin
    with guarded.raw() as client, headwater.connect(stores.url("plain")) as hw:
        client.ask("AUTH", tokens[Scope.ADMIN])
        client.ask("TWRITE", name, "ENTRIES", "t", "a", "t", "b")
        before = hw.stream("hw.audit").info().last
        assert client.ask("TEVICT", name, 1) == 1
        assert str(client.ask("TSEEK", name, "none", 1)).startswith("NOGROUP")
        notes = [
            json.loads(message.value)
            for message in hw.stream("hw.audit").read(before + 1, 100)
            if message is not None and message.tag == name
        ]
    assert [(note["what"], note["outcome"]) for note in notes] == [
        ("tevict", "begun"), ("tevict", "done"), ("tseek", "begun"), ("tseek", "failed"),
    ]  # fmt: skip
    assert [note["who"] for note in notes] == ["ADMIN"] * 4
    assert notes[0]["asked"] == ["TEVICT", name, "1"]
    assert (notes[0]["before"]["first"], notes[1]["after"]["first"]) == (1, 2)


def test_a_server_that_only_reads_refuses_every_change(stores: Stores, name: str) -> None:
    with RespServer(stores.url("plain"), read_only=True) as door, door.raw() as client:
        for command, lines in WORDS.items():
            for line in lines:
                reply = client.ask(*line.replace("NAME", name).split())
                refused = isinstance(reply, hiredis.ReplyError)
                denied = refused and str(reply).startswith("READONLY")
                assert denied == (NEEDED[command] != Scope.READ), line


def test_a_client_without_a_token_gives_its_place_to_newer_ones(guarded: RespServer) -> None:
    waiting = [guarded.raw() for _ in range(8)]
    with guarded.raw() as client:
        assert str(client.ask("PING")).startswith("NOAUTH")
    assert "others wait for a place" in str(waiting[0].read())
    with pytest.raises(EOFError):
        waiting[0].read()
    for client in waiting:
        client.close()
