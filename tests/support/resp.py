"""The RESP door in a thread of this process, and raw clients of it."""

from __future__ import annotations

import select
import shutil
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import hiredis
import redis
from hiredis import pack_command

import headwater.aio
from headwater.serve.batching import StreamWrites
from headwater.serve.limits import RespLimits
from headwater.serve.listening import ServerProcess
from headwater.serve.resp.connection import serve_resp
from headwater.serve.resp.door import Door
from headwater.serve.tokens import Tokens
from headwater.timeline import AsyncFarm
from tests.support.servers import until
from tests.support.serving import ServerThread

WIDE = RespLimits()
_NOTHING = object()


def redis_cli() -> str | None:
    """Return the path of redis-cli, if there is one."""
    beside = Path(sys.executable).with_name("redis-cli")
    return shutil.which("redis-cli") or (str(beside) if beside.exists() else None)


class RespServer(ServerThread):
    """The door to a store, and to a farm if one is given."""

    def __init__(
        self,
        url: str,
        tokens: Tokens | None = None,
        limits: RespLimits = WIDE,
        farm: str | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        async def serve(process: ServerProcess) -> None:
            async with AsyncExitStack() as opened:
                client = await opened.enter_async_context(headwater.aio.connect(url))
                farmed = await opened.enter_async_context(AsyncFarm.open(farm)) if farm else None
                door = Door(
                    client,
                    StreamWrites(client),
                    tokens or Tokens(),
                    limits,
                    farmed,
                    read_only=read_only,
                )
                await serve_resp(process, door)

        super().__init__(serve)

    def raw(self) -> RawClient:
        """Return a client that sends bytes and reads replies."""
        return RawClient(self.connect())

    def redis(self, protocol: int = 3, **options: Any) -> Any:
        """Return a client of redis-py."""
        return redis.Redis(port=self.port, protocol=protocol, **options)


class RawClient:
    """A connection that sends bytes as they are, and reads one reply after another."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, *words: Any) -> Any:
        """Send a command and return its reply; an error is returned, not raised."""
        self.send(pack_command(words))
        return self.read()

    def read(self) -> Any:
        """Return the next reply; raises EOFError when the server has closed."""
        while (reply := self._reader.gets()) is _NOTHING:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError
            self._reader.feed(data)
        return reply

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def until_blocked(door: RespServer, count: int) -> None:
    """Wait until so many readers are blocked."""
    with door.raw() as client:
        until(lambda: f"blocked_clients:{count}\r" in client.ask("INFO", "clients").decode())


def first_answered(clients: list[RawClient]) -> int:
    """Return the place of a client for which a reply is there, waiting for one if needed."""
    ready, _, _ = select.select([client.sock for client in clients], [], [], 20)
    return [client.sock for client in clients].index(ready[0])
