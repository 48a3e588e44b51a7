"""Where a server listens, wider than the loopback only with a token; and one process of it."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int
from headwater.kernel.stopping import stop_on_signals
from headwater.serve.tokens import Tokens

# How long a port may still be in use by processes whose parent was killed.
_LEAVING_S: Final = 2.0
TOKENS_OPTION: Final = "--tokens FILE, which `headwater token new` makes"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a port; ``port`` 0 takes any that is free."""

    host: str
    port: int

    def check(self, tokens: Tokens, option: str = TOKENS_OPTION) -> None:
        """Refuse what cannot be meant, or is dangerous; raises InvalidInput.

        ``option`` says how a token is given to this server.
        """
        check_int(self.port, "port", 0, 65535)
        if not tokens.required and not is_loopback(self.host):
            raise InvalidInput(
                f"listening on {self.host} lets everybody on the network write; give a token "
                f"({option}), or listen on 127.0.0.1"
            )

    def bind(self) -> socket.socket:
        """Take the port, without listening yet; raises InvalidInput when that fails.

        A port on which another server listens is not taken: the two would share its clients. What
        is left of one that was killed has a moment to end.
        """
        patience = time.monotonic() + _LEAVING_S
        while self.port:
            try:
                self._bound(shared=False).close()
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > patience:
                    raise self._refusal(error) from None
                time.sleep(0.05)
        return self.bind_again()

    def bind_again(self) -> socket.socket:
        """Take the port beside other processes of the same server; raises InvalidInput.

        The kernel spreads connections over those that listen.
        """
        try:
            return self._bound(shared=True)
        except OSError as error:
            raise self._refusal(error) from None

    def _bound(self, *, shared: bool) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError:
            bound.close()
            raise
        return bound

    def _refusal(self, error: OSError) -> InvalidInput:
        return InvalidInput(
            f"cannot listen on {self.host}:{self.port} ({error.strerror or error}); choose another "
            "host or port"
        )


def parse_address(text: str) -> ListenAddress:
    """Return the address that host:port spells, or [host]:port; raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal()):
        raise InvalidInput(f"{text!r} is not an address; give host:port, as 127.0.0.1:6300")
    return ListenAddress(host, int(port))


def bound_address(bound: socket.socket) -> ListenAddress:
    """Return the address that a socket is bound to, with the port that it was given."""
    return ListenAddress(*bound.getsockname()[:2])


def url_of(bound: socket.socket, scheme: str) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine is reached by a host: ``localhost``, or a loopback address.

    Any other name may be pointed anywhere by whoever owns it, whatever it begins with.
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


log = logging.getLogger("headwater.serve")

# Options of mallopt. Blocks up to the first size are kept by the heap, which keeps so much free
# memory at its end; larger ones go back to the kernel one by one, as before.
_MMAP_THRESHOLD: Final = (-3, 2 << 20)
_TRIM_THRESHOLD: Final = (-1, 8 << 20)


class ServerProcess(NamedTuple):
    """What a process of a server is given.

    ``number`` counts from 0 and passes to the process that takes the place of one that died, of
    ``processes``. It calls ``ready`` once it listens, and ends when ``stop`` is set. ``also`` are
    the sockets of a server that listens in several places. ``counts`` is the file in which all
    processes count; without one, -1, a process counts for itself.
    """

    number: int
    bound: socket.socket
    stop: asyncio.Event
    ready: Callable[[], None]
    also: tuple[socket.socket, ...] = ()
    processes: int = 1
    counts: int = -1


Serve: TypeAlias = Callable[[ServerProcess], Coroutine[Any, Any, None]]


def run_process(serve: Serve, sockets: Sequence[socket.socket], ready: Callable[[], None]) -> None:
    """Run ``serve`` in this process until SIGTERM or SIGINT; ``ready`` is called once it listens.

    Call it in the main thread.
    """

    async def until_stopped() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop.set):
            await serve(ServerProcess(0, sockets[0], stop, ready, tuple(sockets[1:])))

    prepare_process()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(until_stopped())


def prepare_process() -> None:
    """Let this process serve fast: with its memory at hand."""
    if loop_factory() is None:
        log.warning("uvloop is not installed: the server works, with more time for each request")
    # What is here now stays: the garbage collector takes milliseconds to look through it again.
    gc.freeze()
    _keep_freed_memory()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop: uvloop's where it is installed, else None."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _keep_freed_memory() -> None:
    """Let this process keep some MiB that requests have freed, so that the next ones find them.

    glibc gives large blocks back to the kernel as soon as they are free. A request with a large
    body would have all its pages made and cleared again, which takes as long as to read the body.
    This does nothing if the C library has no such setting, or if it was set when the process was
    started.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(*_MMAP_THRESHOLD)
    mallopt(*_TRIM_THRESHOLD)
