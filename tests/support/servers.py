"""Private servers for tests: one Valkey, the Redis on the PATH, a cluster of three.

Each lives in a temporary directory and ends with the test process, also when that is killed: a
shell waits on a pipe that only the test process holds open, and kills the server when it closes.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.store.embedded import server_binary

LEAST_REDIS = (7, 0)
# Below those that kernels choose by themselves.
_PORTS = range(15_000, 32_000)
_GUARD = '"$@" </dev/null & server=$!; cat >/dev/null; kill -9 $server'


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for a condition to come true and return what it gave; fail when it does not."""
    deadline = time.monotonic() + seconds
    # What takes long is looked at less often: a look may be a request that others wait for.
    pauses_s = itertools.chain((0.002,) * 50, itertools.repeat(0.02))
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not come true in {seconds} s: {condition}"
        time.sleep(next(pauses_s))
    return found


def redis_binary() -> str:
    """Return a redis-server on the PATH that is new enough; skips the test when there is none."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if found := shutil.which("redis-server", path=folder):
            said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
            version = re.search(r"v=(\d+)\.(\d+)", said.stdout)
            if version and (int(version[1]), int(version[2])) >= LEAST_REDIS:
                return found
    pytest.skip("no redis-server 7.0 or later on the PATH")


def free_ports(count: int) -> list[int]:
    """Name ports of the loopback that nobody listens on, and that nobody else is given for long.

    The kernel gives none of them to who connects, or binds port 0, and all test processes draw
    them one after the other: nobody takes one before its server listens, nor while that is down.
    """
    with Path(tempfile.gettempdir(), f"hw-test-ports-{os.getuid()}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        drawn = file.read()
        place = int(drawn) if drawn.isdigit() else secrets.randbelow(len(_PORTS))
        found: list[int] = []
        while len(found) < count:
            place = (place + 1) % len(_PORTS)
            if _is_free(_PORTS[place]):
                found.append(_PORTS[place])
        file.truncate(0)
        file.write(str(place))
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as place:
        try:
            place.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Server:
    """One server process on a unix socket, or on a loopback port when ``tcp`` or given ``port``.

    Without persistence unless ``fsync`` names an appendfsync policy. ``options`` are further
    settings of the configuration file, by name; None leaves one out. ``environment`` holds further
    variables of the process.
    """

    def __init__(
        self,
        binary: str | None = None,
        *,
        tcp: bool = False,
        port: int | None = None,
        fsync: str | None = None,
        options: dict[str, str | None] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self.directory = Path(tempfile.mkdtemp(prefix="hw-server-"))
        self.binary = binary or server_binary()
        self.port = port or (free_ports(1)[0] if tcp else 0)
        self.socket = self.directory / "server.sock"
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.directory),
            "save": '""',
            "appendonly": "yes" if fsync else "no",
            "appendfsync": fsync or "no",
            "logfile": str(self.directory / "server.log"),
            "enable-debug-command": "local",
            "repl-diskless-sync-delay": "0",
            **(options or {}),
        }
        self.settings = {name: value for name, value in settings.items() if value is not None}
        self._guard: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The store URL of this server."""
        return f"redis://127.0.0.1:{self.port}" if self.port else f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        with self.client() as client:
            return int(client.info("server")["process_id"])

    @property
    def log(self) -> str:
        """What the server said so far."""
        log = self.directory / "server.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def start(self) -> None:
        """Start the server with the settings as they are now; returns when it has loaded."""
        config = self.directory / "server.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in self.settings.items()))
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", self.binary, str(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment,
        )
        try:
            until(self.answers)
        except AssertionError:
            raise AssertionError(f"{self.binary} did not start:\n{self.log[-2000:]}") from None

    def answers(self) -> bool:
        """Return whether the server serves."""
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def blocked(self, command: str) -> int:
        """Return how many clients block in a command."""
        with self.client() as admin:
            clients = admin.client_list()
        return sum(client["cmd"] == command and "b" in client["flags"] for client in clients)

    def client(self) -> redis.Redis:
        """Return a plain client that reports a broken connection at once and repeats nothing."""
        password = self.settings.get("requirepass")
        return redis.Redis(
            unix_socket_path=str(self.socket), password=password, retry=Retry(NoBackoff(), 0)
        )

    def kill(self) -> None:
        """End the server as a crash would: kill -9."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not self.answers())
        self._release()

    def restart(self) -> None:
        """Start the server again on what the last one left on disk."""
        self._release()
        self.start()

    def close(self) -> None:
        """End the server and remove its files."""
        self._release()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None


class Cluster:
    """Three primaries that share the slots evenly; ready when all of them say so."""

    def __init__(self, *, fsync: str | None = None, node_timeout_ms: int = 15_000) -> None:
        self.nodes: list[Server] = []
        self.replicas: list[Server] = []
        self._fsync = fsync
        self._node_timeout_ms = node_timeout_ms
        try:
            ports = free_ports(6)
            for port, bus in zip(ports[:3], ports[3:], strict=True):
                self.nodes.append(self._start(port, bus))
            self._join()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The store URL of the cluster."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def add_replica(self, primary: Server) -> Server:
        """Give a primary a replica; returns it when it is in step."""
        port, bus = free_ports(2)
        replica = self._start(port, bus)
        self.replicas.append(replica)
        with replica.client() as admin, primary.client() as other:
            name = node_id(primary)
            other.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
            until(lambda: name in admin.execute_command("CLUSTER", "NODES").decode())
            admin.execute_command("CLUSTER", "REPLICATE", name)
            until(lambda: admin.info("replication").get("master_link_status") == "up")
            until(lambda: b"slave" in other.execute_command("CLUSTER", "NODES"))
        return replica

    def close(self) -> None:
        """End all servers and remove their files."""
        for node in (*self.nodes, *self.replicas):
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, port: int, bus: int) -> Server:
        options: dict[str, str | None] = {
            "cluster-enabled": "yes",
            "cluster-port": str(bus),
            "cluster-node-timeout": str(self._node_timeout_ms),
            "cluster-require-full-coverage": "no",
        }
        return Server(port=port, fsync=self._fsync, options=options)

    def _join(self) -> None:
        bounds = [16384 * place // 3 for place in range(4)]
        clients = [node.client() for node in self.nodes]
        for client, (start, stop) in zip(clients, itertools.pairwise(bounds), strict=True):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", start, stop - 1)
        for node in self.nodes[1:]:
            bus = node.settings["cluster-port"]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until(lambda: all(_is_whole(client) for client in clients))
        for client in clients:
            client.close()


def node_id(node: Server) -> str:
    """Return the name by which a cluster knows one of its nodes."""
    with node.client() as client:
        return str(client.execute_command("CLUSTER", "MYID").decode())


def _is_whole(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    text = info if isinstance(info, dict) else info.decode()
    fields = text if isinstance(text, dict) else dict(re.findall(r"(\w+):(\w+)", text))
    return bool(fields["cluster_state"] == "ok" and fields["cluster_slots_assigned"] == "16384")
