"""Where a server listens, and the rule for it: the loopback, and wider only with a token."""

from __future__ import annotations

import errno
import ipaddress
import socket
import time
from dataclasses import dataclass
from typing import Final

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int
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
