"""A primary, a replica and a sentinel that watches them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from headwater.store.embedded import server_binary
from tests.support.servers import Server, until

SERVICE = "log"


def sentinel_url(*sentinels: Server) -> str:
    """Return the store URL of the service that these sentinels watch."""
    hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
    return f"redis+sentinel://{hosts}/{SERVICE}"


class Watched:
    """Two servers and a sentinel; ``url`` leads to whichever of the two is the primary."""

    def __init__(self, folder: Path, password: str | None = None) -> None:
        self._folder, self._password = folder, password

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            quick: dict[str, str | None] = {"repl-diskless-sync-delay": "0"}
            self.primary = stack.enter_context(Server(tcp=True, options=quick))
            self.replica = stack.enter_context(
                Server(tcp=True, options={**quick, "replicaof": f"127.0.0.1 {self.primary.port}"})
            )
            self.sentinel = stack.enter_context(self.watch(self.primary))
            with self.replica.client() as replica:
                until(lambda: replica.info("replication")["master_link_status"] == "up")
            with self.sentinel.client() as sentinel:
                until(lambda: sentinel.execute_command("SENTINEL", "REPLICAS", SERVICE))
            self._servers = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    @property
    def url(self) -> str:
        """The store URL of the service."""
        return sentinel_url(self.sentinel)

    def watch(self, server: Server) -> Server:
        """Start a sentinel that takes a server for the primary."""
        # The server looks at its own name.
        binary = self._folder / "valkey-sentinel"
        if not binary.exists():
            binary.symlink_to(server_binary())
        unknown = ("save", "appendonly", "appendfsync", "enable-debug-command")
        options = {
            **dict.fromkeys(unknown),
            "sentinel monitor": f"{SERVICE} 127.0.0.1 {server.port} 1",
            "sentinel down-after-milliseconds": f"{SERVICE} 300",
            "sentinel failover-timeout": f"{SERVICE} 5000",
            "requirepass": self._password,
        }
        return Server(str(binary), tcp=True, options=options)

    def settle(self) -> None:
        """Wait until the replica has what the primary was written."""
        with self.primary.client() as primary:
            primary.execute_command("WAIT", 1, 10_000)
