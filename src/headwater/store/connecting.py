"""What the connections of both clients share: how they are made, how long they wait."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import redis
from hiredis import pack_command

from headwater.errors import StoreError
from headwater.store.sentinels import SENTINEL_TIMEOUT_S, following
from headwater.store.url import Address

# A reply that takes longer than this is taken for a dead connection; blocking calls are cut into
# slices well below it.
REPLY_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
# A server ends a blocking command by its own clock, which may be stepped back meanwhile. A reply
# that is this late is not waited for.
OVERDUE_S = 0.5
ASKING = pack_command(("ASKING",))
# By this number a connection that blocks can be freed by another one.
CLIENT_ID: bytes = pack_command(tuple[Any, ...](("CLIENT", "ID")))


def connection_maker(
    module: Any, options: dict[str, Any], address: Address | None = None, **more: Any
) -> Callable[..., Any]:
    """Return a maker of redis-py's connections, sync or async: raw replies, no retries.

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
    if path is not None:
        kind, options["path"] = module.UnixDomainSocketConnection, path
    else:
        kind = module.SSLConnection if tls else module.Connection
    if address is not None and address.kind == "sentinel":
        wait_s = SENTINEL_TIMEOUT_S
        ask = connection_maker(
            module,
            address.sentinel_options,
            socket_timeout=wait_s,
            socket_connect_timeout=wait_s,
        )
        kind = following(kind, address, ask)

    # Not a partial, which would show the password wherever it is shown.
    def make(**place: Any) -> Any:
        return kind(**options, **place)

    return make


def has_news(sock: Any, wait_s: float = 0) -> bool:
    """Return whether there is something to read within that time.

    For an idle connection this means its end: nothing else makes it readable.
    """
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))


@contextmanager
def last_words(sock: Any) -> Iterator[None]:
    """Raise the server's message before it closed a connection, instead of a broken pipe.

    A server that is full says so and closes. On a unix socket a command that is sent just then
    fails at once, and the socket is closed with the message of the server unread.
    """
    if sock is None or sock.family != socket.AF_UNIX:
        yield
        return
    with socket.socket(fileno=os.dup(sock.fileno())) as spare:
        try:
            yield
        except (redis.ConnectionError, OSError):
            spare.setblocking(False)
            with suppress(OSError):
                if (said := spare.recv(1024)).startswith(b"-"):
                    raise redis.ConnectionError(said[1:].decode("utf-8", "replace")) from None
            raise


def refuse_closed(**_: Any) -> NoReturn:
    """Replace the maker of connections once a store is closed."""
    raise StoreError("this client was closed; connect again") from None
