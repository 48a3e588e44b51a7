"""A forwarder between a client and a server: an address behind which servers can change.

It can end TLS, be switched to another server, cut what is connected, and lose one request or one
reply, which no server can be made to do by itself.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import Literal, Self

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
