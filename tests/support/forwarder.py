"""A forwarder between a client and a server: an address behind which servers can change.

It can end TLS, be switched to another server, cut what is connected, and lose one request or one
reply, which no server can be made to do by itself.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from contextlib import ExitStack
from typing import Literal, Self

import redis

from tests.support.servers import Server, until

Loss = Literal["request", "reply"]


class Forwarder:
    """Takes connections on a loopback port and forwards them to the server of another port."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.target = port
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._loss: tuple[Loss, bytes] | None = None
        self.lost = threading.Event()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def switch(self, port: int) -> None:
        """Lead new connections to another server; those that are open stay where they are."""
        self.target = port

    def cut(self) -> None:
        """Break every connection that is open."""
        with self._lock:
            broken, self._open = self._open, set()
        for end in broken:
            _close(end)

    def lose(self, what: Loss, mark: bytes) -> None:
        """Lose the next request that contains ``mark``, or the reply to it, and break off there."""
        self.lost.clear()
        self._loss = (what, mark)

    def close(self) -> None:
        """Take no more connections and break those that are open."""
        _close(self._door)
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            _close(client)
            return
        with self._lock:
            self._open |= {client, server}
        muted = threading.Event()
        threading.Thread(target=self._replies, args=(server, client, muted), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                # Looked up in what comes at once: the commands of these tests are small.
                if self._loss is not None and self._loss[1] in data:
                    what, self._loss = self._loss[0], None
                    if what == "reply":
                        muted.set()
                        server.sendall(data)
                        continue
                    self.lost.set()
                    break
                server.sendall(data)
        self._end(client, server)

    def _replies(
        self, server: socket.socket, client: socket.socket, muted: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if muted.is_set():
                    self.lost.set()
                    break
                client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        with self._lock:
            self._open -= set(ends)
        for end in ends:
            _close(end)


def _close(end: socket.socket) -> None:
    # Shut down first: closing alone does not wake a thread that reads from it.
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


# A failover that loses writes: two servers behind one address, the second a copy of the first.


def rows(letter: str, first: int, count: int) -> list[tuple[str, bytes]]:
    """Return messages that tell who wrote them, and at which offset."""
    return [(letter, f"{letter}{n}".encode()) for n in range(first, first + count)]


class ServerPair:
    """What ``old`` was written after ``copy`` is lost when ``url`` leads to ``new``."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.old = stack.enter_context(Server(tcp=True))
            self.new = stack.enter_context(Server(tcp=True))
            self._door = stack.enter_context(Forwarder(self.old.port))
            self._servers = stack.pop_all()
        self.url = f"redis://127.0.0.1:{self._door.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def copy(self) -> None:
        """Replicate the old server to the new one, up to now."""
        with self.new.client() as new, self.old.client() as old:
            new.replicaof("127.0.0.1", str(self.old.port))
            until(lambda: new.info("replication")["master_link_status"] == "up")
            until(lambda: _written(new) == _written(old))
            new.replicaof("NO", "ONE")

    def fail_over(self) -> None:
        """Lead everybody to the new server."""
        self._door.switch(self.new.port)
        self._door.cut()


def _written(server: redis.Redis) -> int:
    return int(server.info("replication")["master_repl_offset"])
