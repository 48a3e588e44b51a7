"""Clients that are slow, huge, half-sent or flood the server cost no more than the limits say."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

import headwater
from headwater.kernel.declaring import Scope
from headwater.serve.limits import RespLimits
from headwater.serve.tokens import Tokens
from tests.support.resp import RespServer, until_blocked
from tests.support.stores import Stores

TOKENS = Tokens([("secret", Scope.WRITE)])


def test_a_client_without_a_token_is_held_to_small_commands_and_a_short_time(
    stores: Stores,
) -> None:
    limits = RespLimits(hello_ms=50)
    with RespServer(stores.url("plain"), TOKENS, limits) as door:
        with door.raw() as many:
            many.send(b"*11\r\n")
            assert "unauthenticated multibulk length" in str(many.read())
        with door.raw() as large:
            large.send(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n")
            assert "unauthenticated bulk length" in str(large.read())
        with door.raw() as silent, pytest.raises(EOFError):
            silent.read()
        with door.raw() as known:
            # The limits widen with the very command behind the token.
            known.send(b"AUTH secret\r\n*2\r\n$4\r\nECHO\r\n$20000\r\n" + b"x" * 20_000 + b"\r\n")
            assert known.read() == b"OK"
            assert len(known.read()) == 20_000


def test_half_a_command_is_not_waited_for_and_an_idle_client_stays(stores: Stores) -> None:
    limits = RespLimits(frame_ms=50, hello_ms=50, reply_ms=50)
    with (
        RespServer(stores.url("plain"), limits=limits) as door,
        door.raw() as idle,
        door.raw() as half,
    ):
        half.send(b"*2\r\n$4\r\nECHO\r\n")
        with pytest.raises(EOFError):
            half.read()
        assert idle.ask("PING") == b"PONG"


def test_there_is_room_for_so_many_clients(stores: Stores) -> None:
    with RespServer(stores.url("plain"), limits=RespLimits(max_connections=2)) as door:
        with door.raw() as one, door.raw() as two:
            assert (one.ask("PING"), two.ask("PING")) == (b"PONG", b"PONG")
            with door.raw() as third:
                assert str(third.read()) == "ERR max number of clients reached"
        while not _is_answered(door):
            pass


def _is_answered(door: RespServer) -> bool:
    with door.raw() as client, contextlib.suppress(OSError, EOFError):
        return bool(client.ask("PING") == b"PONG")
    return False


def test_the_connections_of_one_token_keep_no_other_out(stores: Stores) -> None:
    tokens = Tokens([("reader", Scope.READ), ("keeper", Scope.ADMIN)])
    with (
        RespServer(stores.url("plain"), tokens, RespLimits(max_connections=4)) as door,
        contextlib.ExitStack() as opened,
    ):
        readers = [opened.enter_context(door.raw()) for _ in range(5)]
        replies = [reader.ask("AUTH", "reader") for reader in readers]
        assert replies[:4] == [b"OK"] * 4
        assert "too many connections" in str(replies[4])
        keepers = [opened.enter_context(door.raw()) for _ in range(3)]
        assert [keeper.ask("AUTH", "keeper") for keeper in keepers[:2]] == [b"OK"] * 2
        assert "too many connections" in str(keepers.pop().ask("AUTH", "keeper"))
        for served in (*readers[2:4], *keepers):
            assert served.ask("PING") == b"PONG"


def test_a_client_that_does_not_read_is_not_answered_further_and_then_closed(
    stores: Stores, name: str
) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.stream(name).write_many([("t", b"x" * 1000)] * 1000)
    limits = RespLimits(reply_ms=100)
    with RespServer(stores.url("plain"), limits=limits) as door, door.raw() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = b"TREAD %b 1 1000\r\n" % name.encode()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            client.send(ask * 1_000_000)
        with door.raw() as other:
            (line,) = [
                line for line in other.ask("INFO", "stats").decode().split("\r\n")
                if line.startswith("total_commands")
            ]  # fmt: skip
            # What was sent would have been answered with gigabytes.
            assert int(line.split(":")[1]) < 500


def test_the_largest_is_closed_when_all_together_hold_too_much(stores: Stores) -> None:
    limits = RespLimits(max_frame=1 << 20, max_buffered=1 << 20)
    with (
        RespServer(stores.url("plain"), limits=limits) as door,
        door.raw() as large,
        door.raw() as larger,
        door.raw() as small,
    ):
        small.send(b"*2\r\n$4\r\nECHO\r\n$2\r\nh")
        large.send(b"*2\r\n$4\r\nECHO\r\n$500000\r\n" + b"x" * 400_000)
        larger.send(b"*2\r\n$4\r\nECHO\r\n$900000\r\n" + b"x" * 800_000)
        assert "retry later" in str(larger.read())
        small.send(b"i\r\n")
        assert small.read() == b"hi"
        large.send(b"x" * 100_000 + b"\r\n")
        assert len(large.read()) == 500_000


def test_a_flood_of_commands_is_answered_in_order_and_others_have_their_turn(
    stores: Stores,
) -> None:
    with (
        RespServer(stores.url("plain")) as door,
        door.raw() as flood,
        door.raw() as other,
    ):
        count = 50_000
        flood.sock.settimeout(60)
        sending = threading.Thread(
            target=flood.send, args=(b"".join(b"ECHO %d\r\n" % n for n in range(count)),)
        )
        sending.start()
        assert other.ask("PING") == b"PONG"
        assert [flood.read() for _ in range(count)] == [b"%d" % n for n in range(count)]
        sending.join()


def test_a_drain_answers_what_has_begun_and_lets_blocked_readers_go(
    stores: Stores, name: str
) -> None:
    door = RespServer(stores.url("plain"))
    with door:
        blocked, idle, half = door.raw(), door.raw(), door.raw()
        half.send(b"*2\r\n$4\r\nECHO\r\n")
        assert idle.ask("PING") == b"PONG"
        blocked.send(b"TREAD %b 0 1 GROUP g BLOCK 0\r\n" % name.encode())
        until_blocked(door, 1)
        writer = door.raw()
        with door.stands_still():
            writer.send(b"TWRITE %b-2 t v\r\n" % name.encode())
            door.stop()
        assert writer.read() == 1
        for client in (blocked, idle, half, writer):
            with pytest.raises((EOFError, ConnectionResetError)):
                client.read()
        door.stopped()
    with headwater.connect(stores.url("plain")) as hw:
        assert hw.stream(name).group("g").info().waiting == 0
        assert hw.stream(f"{name}-2").info().length == 1
