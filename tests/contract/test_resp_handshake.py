"""Clients find the server that they expect: their handshakes, byte by byte, and Redis's texts."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import hiredis
import pytest
import redis
import redis.asyncio
from hiredis import pack_command

import headwater.aio
from headwater.errors import StoreError
from headwater.serve.resp.table import COMMANDS
from tests.support.resp import RespServer, redis_cli

HELLO = {
    b"server": b"redis", b"version": b"7.4.0", b"proto": 3, b"mode": b"standalone",
    b"role": b"master", b"modules": [],
}  # fmt: skip
_MOVING = ("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "none")
_NOT_MOVING = "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."

# What each client sends when it connects; None stands for the reply to HELLO.
HANDSHAKES: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "go-redis": [
        (("hello", "3"), None),
        (("client", "setname", "app"), b"OK"),
        (("client", "maint_notifications", "on", "moving-endpoint-type", "none"),
         "ERR unknown subcommand 'maint_notifications'. Try CLIENT HELP."),
        (("client", "setinfo", "LIB-NAME", "go-redis(,go1.24)"), b"OK"),
        (("client", "setinfo", "LIB-VER", "9.12.0"), b"OK"),
        (("select", "0"), b"OK"),
    ],
    "jedis": [
        (("HELLO", "3"), None),
        (("CLIENT", "SETINFO", "lib-name", "jedis"), b"OK"),
        (("CLIENT", "SETINFO", "lib-ver", "6.0.0"), b"OK"),
        (("SELECT", "0"), b"OK"),
    ],
    "lettuce": [
        (("HELLO", "3"), None),
        (("CLIENT", "SETINFO", "lib-name", "Lettuce"), b"OK"),
        (("CLIENT", "SETINFO", "lib-ver", "6.8.0"), b"OK"),
        (("PING",), b"PONG"),
    ],
    "node-redis": [
        (("HELLO", "3"), None),
        (("CLIENT", "SETINFO", "LIB-NAME", "node-redis"), b"OK"),
        (("CLIENT", "SETINFO", "LIB-VER", "6.3.0"), b"OK"),
        (_MOVING, _NOT_MOVING),
    ],
    "StackExchange.Redis": [
        (("HELLO", "3", "SETNAME", "app"), None),
        (("CLIENT", "SETINFO", "lib-name", "SE.Redis"), b"OK"),
        (("CLIENT", "ID"), int),
        (("CONFIG", "GET", "timeout"), {}),
        (("CONFIG", "GET", "databases"), {b"databases": b"1"}),
        (("ECHO", b"\x01\x02"), b"\x01\x02"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("library", HANDSHAKES)
def test_the_handshakes_of_clients_succeed(door: RespServer, library: str) -> None:
    steps = HANDSHAKES[library]
    with door.raw() as client:
        client.send(b"".join(pack_command(words) for words, _ in steps))
        for words, expected in steps:
            reply = client.read()
            if expected is None:
                assert {k: v for k, v in reply.items() if k != b"id"} == HELLO
                assert reply[b"id"] > 0
            elif expected is int:
                assert isinstance(reply, int)
            elif isinstance(expected, str):
                assert str(reply) == expected, words
            else:
                assert reply == expected, words


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_works_unchanged(door: RespServer, name: str, protocol: int) -> None:
    with door.redis(protocol, client_name="app") as client:
        assert client.ping()
        assert client.client_getname() in ("app", b"app")
        assert client.client_id() > 0
        assert client.info()["role"] == "master"
        assert client.info("replication")["role"] == "master"
        assert client.info("persistence")["loading"] == 0
        assert client.client_info()["lib-name"].startswith("redis-py")
        assert any(one["name"] == "app" for one in client.client_list())
        assert client.config_get("nothing") == {}
        assert client.command_count() == len(client.command_list())
        assert client.command()["tread"]["arity"] == -4
        assert len(client.command_getkeys("TWRITE", name, "t", "v")) == 1
        assert client.execute_command("TWRITE", name, "t", "v") == 1

    async def over_asyncio() -> Any:
        async with redis.asyncio.Redis(port=door.port, protocol=protocol) as client:
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command("TWRITE", name, "t", "w")
            pipeline.execute_command("TREAD", name, 1, 10)
            return await pipeline.execute()

    written, read = asyncio.run(over_asyncio())
    assert written == 2
    assert read == [[1, b"t", b"v"], [2, b"t", b"w"]]


@pytest.mark.skipif(redis_cli() is None, reason="there is no redis-cli")
def test_redis_cli_works_unchanged(door: RespServer, name: str) -> None:
    def cli(*words: str, said: str = "") -> str:
        command = [str(redis_cli()), "-p", str(door.port), *words]
        return subprocess.run(
            command, input=said, capture_output=True, text=True, check=True
        ).stdout

    assert cli("TWRITE", name, "ride-1", "hello") == "1\n"
    assert cli("-3", "TREAD", name, "1", "10") == "1\nride-1\nhello\n"
    assert cli("--no-raw", "TREAD", name, "1", "10", "WITHINFO").split() == [
        "1)", "1)", "(integer)", "1", "2)", "(integer)", "1",
        "2)", "1)", "(integer)", "1", "2)", '"ride-1"', "3)", '"hello"',
    ]  # fmt: skip
    assert cli(said=f'TWRITE {name} ride-2 "two words"\nTREAD {name} 2 1\n').split("\n")[-2] == (
        "two words"
    )
    assert "unknown command 'get'" in cli("get", "x").lower()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nonsense", "a", "b"),
         "ERR unknown command 'nonsense', with args beginning with: 'a' 'b' "),
        (("FCALL", "hw_stream_info", "1", "x"),
         "ERR unknown command 'FCALL', with args beginning with: 'hw_stream_info' '1' 'x' "),
        (("nonsense",), "ERR unknown command 'nonsense', with args beginning with: "),
        (("x" * 200, "y" * 200),
         f"ERR unknown command '{'x' * 128}', with args beginning with: '{'y' * 128}' "),
        (("ECHO",), "ERR wrong number of arguments for 'echo' command"),
        (("CLIENT",), "ERR wrong number of arguments for 'client' command"),
        (("CLIENT", "SETNAME"), "ERR wrong number of arguments for 'client|setname' command"),
        (("CLIENT", "KILL", "x"), "ERR unknown subcommand 'KILL'. Try CLIENT HELP."),
        (("CONFIG", "SET", "a", "b"), "ERR unknown subcommand 'SET'. Try CONFIG HELP."),
        (("COMMAND", "NO"), "ERR unknown subcommand 'NO'. Try COMMAND HELP."),
        (("CLIENT", "SETINFO", "LIB-X", "a"), "ERR Unrecognized option 'LIB-X'"),
        (("CLIENT", "SETNAME", "a b"),
         "ERR Client names cannot contain spaces, newlines or special characters."),
        (("HELLO", "4"), "NOPROTO unsupported protocol version"),
        (("HELLO", "x"), "ERR Protocol version is not an integer or out of range"),
        (("HELLO", "3", "NONSENSE"), "ERR Syntax error in HELLO option 'nonsense'"),
        (("AUTH", "x"),
         "ERR AUTH <password> called without any password configured for the default user. Are "
         "you sure your configuration is correct?"),
        (("SELECT", "1"), "ERR DB index is out of range"),
        (("SELECT", "x"), "ERR value is not an integer or out of range"),
        (("READONLY",), "ERR This instance has cluster support disabled"),
        (("COMMAND", "GETKEYS", "PING"), "ERR The command has no key arguments"),
    ],
)  # fmt: skip
def test_errors_have_the_words_of_redis(
    door: RespServer, words: tuple[str, ...], text: str
) -> None:
    with door.raw() as client:
        reply = client.ask(*words)
        assert isinstance(reply, hiredis.ReplyError)
        assert str(reply) == text
        assert client.ask("PING") == b"PONG"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("twrite", "s"), "wrong number of arguments for 'twrite' command"),
        (("TWRITE", "s", "ENTRIES", "t", "v", "t"),
         "wrong number of arguments for 'twrite' command"),
        (("TREAD", "s", "1", "x"), "value is not an integer or out of range"),
        (("TREAD", "s", "1", "1", "NONSENSE"), "syntax error"),
        (("TREAD", "s", "1", "1", "BLOCK"), "syntax error"),
        (("TREAD", "s", "1", "1", "BLOCK", "-1"), "timeout is negative"),
        (("TREAD", "s", "1", "1", "RETRY", "1", "1"), "syntax error"),
        (("QPOP", "q", "1", "ACK", "1000"), "syntax error"),
        (("ICKADD", "d", "first", "a"), "value is not a valid float"),
    ],
)  # fmt: skip
def test_errors_of_our_own_commands_say_how_they_are_written(
    door: RespServer, words: tuple[str, ...], text: str
) -> None:
    name = words[0].upper()
    with door.raw() as client:
        reply = client.ask(*words)
        assert isinstance(reply, hiredis.ReplyError)
        assert str(reply) == f"ERR {text}; write {name} {COMMANDS[name.encode()].syntax}"
        assert client.ask("PING") == b"PONG"


def test_a_session_is_reset_and_left(door: RespServer) -> None:
    with door.raw() as client:
        client.ask("HELLO", "3", "SETNAME", "app")
        assert client.ask("CLIENT", "GETNAME") == b"app"
        assert client.ask("RESET") == b"RESET"
        assert client.ask("CLIENT", "GETNAME") is None
        assert isinstance(client.ask("HELLO"), list)
        assert client.ask("CLIENT", "NO-EVICT", "on") == b"OK"
        assert client.ask("CLIENT", "REPLY", "ON") == b"OK"
        client.send(b"QUIT\r\nPING\r\n")
        assert client.read() == b"OK"
        with pytest.raises(EOFError):
            client.read()


def test_bytes_that_are_no_command_end_the_connection(door: RespServer) -> None:
    with door.raw() as client:
        client.send(b"PING\r\n*1\r\n:1\r\nPING\r\n")
        assert client.read() == b"PONG"
        assert str(client.read()) == "ERR Protocol error: expected '$', got ':'"
        with pytest.raises(EOFError):
            client.read()


def test_every_command_is_described(door: RespServer) -> None:
    with door.raw() as client:
        client.ask("HELLO", "3")
        docs = client.ask("COMMAND", "DOCS")
        names = {command.name.lower().encode() for command in COMMANDS.values()}
        assert docs.keys() == names
        assert docs[b"tread"][b"arguments"][3][b"token"] == b"BLOCK"
        assert client.ask("COMMAND", "DOCS", "tread", "nonsense").keys() == {b"tread"}
        details = client.ask("COMMAND", "INFO", "tlinsert", "nonsense", "TWRITE")
        assert details[0][3:6] == [1, -1, 3]
        assert details[1] is None
        assert details[2][:2] == [b"twrite", -4]
        assert details[2][3:6] == [1, 1, 1]
        assert client.ask("COMMAND", "COUNT") == len(names)
        keys = client.ask("COMMAND", "GETKEYS", "TLINSERT", "a", "1", "m", "b", "2", "m")
        assert keys == [b"a", b"b"]


def test_nothing_of_a_refused_transaction_is_run(door: RespServer, name: str) -> None:
    """What redis-py's pipeline() sends unless told otherwise; a repeat must not write twice."""
    with door.redis() as client:
        for _ in range(2):
            pipeline = client.pipeline()
            pipeline.execute_command("TWRITE", name, "t", "a")
            pipeline.execute_command("TWRITE", name, "t", "b")
            with pytest.raises(redis.ResponseError, match=r"pipeline\(transaction=False\)"):
                pipeline.execute()
        assert client.execute_command("TREAD", name, 1, 10) == []
        with pytest.raises(redis.ResponseError, match="MULTI is not supported"):
            client.execute_command("MULTI")
        with pytest.raises(redis.ResponseError, match="was not run"):
            client.execute_command("TWRITE", name, "t", "a")
        assert client.execute_command("DISCARD") in (b"OK", True)
        for command in ("EXEC", "DISCARD"):
            with pytest.raises(redis.ResponseError, match=f"{command} without MULTI"):
                client.execute_command(command)
        pipeline = client.pipeline(transaction=False)
        pipeline.execute_command("TWRITE", name, "t", "a")
        assert pipeline.execute() == [1]


def test_the_door_is_not_taken_for_a_store(door: RespServer) -> None:
    async def ask() -> None:
        async with headwater.aio.connect(url) as hw:
            await hw.stream("s").info()

    url = f"redis://127.0.0.1:{door.port}"
    with pytest.raises(StoreError, match="the RESP door of `headwater serve`"):
        asyncio.run(ask())
    with (
        pytest.raises(StoreError, match="the RESP door of `headwater serve`"),
        headwater.connect(url) as hw,
    ):
        hw.stream("s").info()
