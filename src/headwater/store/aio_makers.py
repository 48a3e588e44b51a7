"""Makers of redis-py's connections: to a server, or to the primary that sentinels name.

Sentinels are asked which server is the primary, each time before a connection to it is opened. A
connection that broke may have ended with a failover, so its successor asks again: an old primary
that comes back does not get writes that would be lost. A server that says it is a replica is not
used, where its user may ask for that (ROLE). Open connections need no sentinel.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import redis
import redis.asyncio.connection as redis_connections
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from headwater.errors import AccessDenied
from headwater.store import faults
from headwater.store.connecting import CONNECT_TIMEOUT_S, Node
from headwater.store.url import Address, node_name

ASYNC: Final = True  # the twin has what is under else

# One of several: when it does not answer soon, the next one is asked.
SENTINEL_TIMEOUT_S = 1.0


class AsyncSentinels:
    """The sentinels of one service, the one that answered last first."""

    def __init__(self, address: Address) -> None:
        self._service, self._where = address.service, address.safe
        self._nodes = deque(address.nodes)
        self._make = connection_maker(
            address.sentinel_options,
            socket_timeout=SENTINEL_TIMEOUT_S,
            socket_connect_timeout=SENTINEL_TIMEOUT_S,
        )

    async def find(self) -> Node:
        """Return the address of the primary.

        Raises AccessDenied or StoreError when every sentinel answered, and none of them knows;
        ConnectionError when one of them may still.
        """
        refusals: list[BaseException] = []
        why, absent = "", 0
        for node in list(self._nodes):
            # It is the last one from now on, also for others, until it has answered.
            self._nodes.rotate(-1)
            try:
                reply = await self._ask(node)
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
                    self._nodes.remove(node)
                    self._nodes.appendleft(node)
                    return host.decode(), int(port)
                refusals.append(
                    faults.lasting_error(
                        f"the sentinels at {self._where} know no service {self._service!r}; "
                        "SENTINEL MASTERS lists those that they know"
                    )
                )
        if len(refusals) < len(self._nodes):
            kind = faults.NobodyListens if absent == len(self._nodes) else RedisConnectionError
            raise kind(f"no sentinel names the primary ({why})")
        raise self._refusal(refusals[0])

    async def _ask(self, node: Node) -> Any:
        connection = self._make(host=node[0], port=node[1])
        try:
            await connection.connect()
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            return await connection.read_response(disable_decoding=True)
        finally:
            await connection.disconnect(nowait=True)

    def doubt(self) -> None:
        """Ask another sentinel next: the primary that this one named does not serve."""
        self._nodes.rotate(-1)

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


class _AsyncFollowing:
    """A connection that asks for the primary whenever it connects."""

    sentinels: AsyncSentinels

    async def _connect(self: Any) -> Any:
        self.host, self.port = await self.sentinels.find()
        try:
            return await super()._connect()  # type: ignore[misc]
        except (redis.RedisError, OSError):
            self.sentinels.doubt()
            raise

    async def on_connect(self: Any) -> None:
        await super().on_connect()  # type: ignore[misc]
        await self.send_command("ROLE")
        try:
            role, *_ = await self.read_response(disable_decoding=True)
            if role != b"master":
                raise RedisConnectionError("the sentinels name a server that is not a primary yet")
        except NoPermissionError:
            return
        except RedisConnectionError:
            self.sentinels.doubt()
            raise


if ASYNC:

    class UnixDomainSocketConnection(redis_connections.UnixDomainSocketConnection):
        """A connection by a unix socket; the caller limits the time of opening it.

        redis-py's own greets the server as soon as it is open, and again when it is asked to: the
        first greeting is sent before the server's message can be read, and the server may have
        closed the connection already. This one greets once, as those by a port do.
        """

        async def _connect(self) -> None:
            self._reader, self._writer = await asyncio.open_unix_connection(self.path)

else:
    UnixDomainSocketConnection = redis_connections.UnixDomainSocketConnection


def connection_maker(
    options: dict[str, Any], address: Address | None = None, **more: Any
) -> Callable[..., Any]:
    """Return a maker of redis-py's connections: raw replies, no retries.

    They lead to the primary of a service when ``address`` names sentinels.
    """
    options = {
        "protocol": 2,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "client_name": "headwater",
        "driver_info": None,
        **options,
        **more,
    }
    path, tls = options.pop("unix_socket_path", None), options.pop("ssl", False)
    kind: type = redis_connections.SSLConnection if tls else redis_connections.Connection
    if path is not None:
        kind, options["path"] = UnixDomainSocketConnection, path
    if address is not None and address.kind == "sentinel":
        sentinels = AsyncSentinels(address)
        kind = type(kind.__name__, (_AsyncFollowing, kind), {"sentinels": sentinels})

    # Not a partial, which would show the password wherever it is shown.
    def make(**place: Any) -> Any:
        return kind(**options, **place)

    return make
