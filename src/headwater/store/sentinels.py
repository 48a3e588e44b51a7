"""Sentinels are asked which server is the primary, each time before a connection to it is opened.

A connection that broke may have ended with a failover, so its successor asks again: an old primary
that comes back does not get writes that would be lost. A server that says it is a replica is not
used, where its user may ask for that (ROLE). Open connections need no sentinel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from headwater.errors import AccessDenied
from headwater.store import faults
from headwater.store.slots import Node
from headwater.store.url import Address, node_name

# One of several: when it does not answer soon, the next one is asked.
SENTINEL_TIMEOUT_S = 1.0


class Sentinels:
    """The sentinels of one service, the one that answered last first."""

    def __init__(self, address: Address) -> None:
        self._service, self._where = address.service, address.safe
        self._nodes = deque(address.nodes)

    def find(self) -> Generator[tuple[Node, tuple[str, ...]], Any, Node]:
        """Return the address of the primary: yields a sentinel and a command, is sent the reply.

        Raises AccessDenied or StoreError when every sentinel answered, and none of them knows;
        ConnectionError when one of them may still.
        """
        refusals: list[BaseException] = []
        why, absent = "", 0
        for node in list(self._nodes):
            # It is the last one from now on, also for others, until it has answered.
            self._nodes.rotate(-1)
            try:
                reply = yield node, ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            except redis.ResponseError as error:
                refusals.append(error)
            except (redis.RedisError, OSError) as error:
                if faults.is_access(error):
                    refusals.append(error)
                why = f"{node_name(*node)}: {error}"
                absent += faults.nobody_listens(error)
            else:
                if reply is not None:
                    host, port = reply
                    self._put_first(node)
                    return host.decode(), int(port)
                refusals.append(faults.lasting_error(self._unknown()))
        if len(refusals) < len(self._nodes):
            kind = faults.NobodyListens if absent == len(self._nodes) else RedisConnectionError
            raise kind(f"no sentinel names the primary ({why})")
        raise self._refusal(refusals[0])

    def doubt(self) -> None:
        """Ask another sentinel next: the primary that this one named does not serve."""
        self._nodes.rotate(-1)

    def _put_first(self, node: Node) -> None:
        self._nodes.remove(node)
        self._nodes.appendleft(node)

    def _unknown(self) -> str:
        return (
            f"the sentinels at {self._where} know no service {self._service!r}; "
            "SENTINEL MASTERS lists those that they know"
        )

    def _refusal(self, error: BaseException) -> BaseException:
        if faults.is_access(error):
            return AccessDenied(
                self._where,
                f"a sentinel refuses us ({error})",
                "give its user and password by ?sentinel_username=...&sentinel_password=...",
            )
        if isinstance(error, redis.ResponseError):
            return faults.lasting_error(
                f"a server at {self._where} is no sentinel ({error}); "
                "name the sentinels there, by default at port 26379, or use a redis:// URL"
            )
        return error


def _check_role(reply: Any) -> None:
    if reply[0] != b"master":
        raise RedisConnectionError("the sentinels name a server that is not a primary yet")


class _Following:
    """A connection that asks for the primary whenever it connects."""

    sentinels: Sentinels
    ask: Callable[..., Any]

    def _connect(self: Any) -> Any:
        found = self.sentinels.find()
        try:
            step = found.send(None)
            while True:
                try:
                    reply = _ask(self.ask, *step)
                except (redis.RedisError, OSError) as error:
                    step = found.throw(error)
                else:
                    step = found.send(reply)
        except StopIteration as done:
            self.host, self.port = done.value
        try:
            return super()._connect()  # type: ignore[misc]
        except (redis.RedisError, OSError):
            self.sentinels.doubt()
            raise

    def on_connect(self: Any) -> None:
        super().on_connect()  # type: ignore[misc]
        self.send_command("ROLE")
        try:
            _check_role(self.read_response(disable_decoding=True))
        except NoPermissionError:
            return
        except RedisConnectionError:
            self.sentinels.doubt()
            raise


def _ask(make: Callable[..., Any], node: Node, command: tuple[str, ...]) -> Any:
    connection = make(host=node[0], port=node[1])
    try:
        connection.connect()
        connection.send_command(*command)
        return connection.read_response(disable_decoding=True)
    finally:
        connection.disconnect()


class _AsyncFollowing:
    """See _Following."""

    sentinels: Sentinels
    ask: Callable[..., Any]

    async def _connect(self: Any) -> Any:
        found = self.sentinels.find()
        try:
            step = found.send(None)
            while True:
                try:
                    reply = await _ask_async(self.ask, *step)
                except (redis.RedisError, OSError) as error:
                    step = found.throw(error)
                else:
                    step = found.send(reply)
        except StopIteration as done:
            self.host, self.port = done.value
        try:
            return await super()._connect()  # type: ignore[misc]
        except (redis.RedisError, OSError):
            self.sentinels.doubt()
            raise

    async def on_connect(self: Any) -> None:
        await super().on_connect()  # type: ignore[misc]
        await self.send_command("ROLE")
        try:
            _check_role(await self.read_response(disable_decoding=True))
        except NoPermissionError:
            return
        except RedisConnectionError:
            self.sentinels.doubt()
            raise


async def _ask_async(make: Callable[..., Any], node: Node, command: tuple[str, ...]) -> Any:
    connection = make(host=node[0], port=node[1])
    try:
        await connection.connect()
        await connection.send_command(*command)
        return await connection.read_response(disable_decoding=True)
    finally:
        await connection.disconnect(nowait=True)


def following(kind: type, address: Address, ask: Callable[..., Any]) -> type:
    """Return a kind of redis-py's connections that leads to the primary of a service.

    ``kind`` is one of its own; ``ask`` makes connections to sentinels.
    """
    shell = _AsyncFollowing if kind.__module__.startswith("redis.asyncio") else _Following
    return type(
        kind.__name__, (shell, kind), {"sentinels": Sentinels(address), "ask": staticmethod(ask)}
    )
