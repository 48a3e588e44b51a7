"""A gate before a store: lets replies through up to a number of bytes, then holds them.

Whoever reads at that moment is in the middle of its work, for as long as a test needs.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from pathlib import Path
from typing import Self

from tests.support.processes import sockets


class Gate:
    """Forwards a loopback port to a server's; at most one connection is ever held."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._allowed: int | None = None
        self._lock = threading.Lock()
        self.held = threading.Event()
        self._open = threading.Event()
        self._held_port = 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_after(self, size: int) -> None:
        """Hold the first connection whose replies are larger than so many bytes."""
        self._allowed = size

    def open(self) -> None:
        """Break the connection that is held, and hold none any more."""
        self._allowed = None
        self._open.set()

    def reader(self) -> int:
        """Return the process id of whoever waits at the gate."""
        hexadecimal = f"{self._held_port:04X}"
        table = Path("/proc/net/tcp").read_text()
        found = re.search(rf"^ *\d+: \w+:{hexadecimal} (?:\S+ +){{7}}(\d+)", table, re.MULTILINE)
        assert found, "the held connection is gone"
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdecimal() and found[1] in sockets(int(process.name)):
                    return int(process.name)
        raise AssertionError("nobody has the held connection")

    def close(self) -> None:
        """Take no more connections."""
        self._door.close()
        self.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, (_, port) = self._door.accept()
                threading.Thread(target=self._serve, args=(client, port), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        place = ("127.0.0.1", self._target)
        with contextlib.suppress(OSError), client, socket.create_connection(place) as server:
            threading.Thread(target=_pump, args=(client, server), daemon=True).start()
            size = 0
            while data := server.recv(65536):
                size += len(data)
                if self._holds(size):
                    self._held_port = port
                    self.held.set()
                    self._open.wait(120)
                    break
                client.sendall(data)
            # Closing alone would tell the client nothing while the other thread still reads.
            client.shutdown(socket.SHUT_RDWR)

    def _holds(self, size: int) -> bool:
        with self._lock:
            if self._allowed is None or size <= self._allowed or self.held.is_set():
                return False
            self._allowed = None
            return True


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
