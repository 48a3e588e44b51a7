"""Where a server listens, and the rule for it: the loopback, and wider only with a token."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from headwater.errors import InvalidInput
from headwater.inputs import check_int
from headwater.serve.tokens import Tokens


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and a port; ``port`` 0 takes any that is free."""

    host: str
    port: int

    def check(self, tokens: Tokens) -> None:
        """Refuse what cannot be meant, or is dangerous; raises InvalidInput."""
        check_int(self.port, "port", 0, 65535)
        if not tokens.required and not is_loopback(self.host):
            raise InvalidInput(
                f"to listen on {self.host} lets everybody on the network write; give a token, or "
                "listen on 127.0.0.1"
            )

    def bind(self) -> socket.socket:
        """Take the port, without listening yet; raises InvalidInput when that fails.

        Several processes may bind the same port: the kernel spreads connections over those that
        listen.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError as error:
            bound.close()
            raise InvalidInput(
                f"cannot listen on {self.host}:{self.port} ({error.strerror or error}); choose "
                "another host or port"
            ) from None
        return bound


def parse_address(text: str) -> ListenAddress:
    """Return the address that host:port spells, or [host]:port; raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal()):
        raise InvalidInput(f"{text!r} is no address; give host:port, as 127.0.0.1:6300")
    return ListenAddress(host, int(port))


def bound_address(bound: socket.socket) -> ListenAddress:
    """Return the address that a socket is bound to, with the port that it was given."""
    return ListenAddress(*bound.getsockname()[:2])


def url_of(bound: socket.socket, scheme: str) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether only this machine is reached by a host."""
    return host in ("localhost", "::1") or host.startswith("127.")
