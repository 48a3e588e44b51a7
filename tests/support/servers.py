"""Private servers for tests: one Valkey, the Redis on the PATH, a cluster of three.

Each lives in a temporary directory and ends with the test process, also when that is killed: a
shell waits on a pipe that only the test process holds open, and kills the server when it closes.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import quote

import pytest
import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from headwater.log.keys import stream_key
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


# ── A server with a password, which needs escaping in a URL: for tests of who may connect ────────


PASSWORD = "p@ss/wörd:?#"
SAFE_PASSWORD = quote(PASSWORD, safe="")


@contextmanager
def locked() -> Iterator[Server]:
    """Run a server with a password, and the user "app", who may do all that is needed."""
    with Server(tcp=True, options={"requirepass": PASSWORD}) as server:
        with server.client() as admin:
            admin.acl_setuser(
                "app", enabled=True, passwords=["+app-pw"], keys=["hw:*"], commands=["+@all"]
            )
        yield server


# ── A primary, a replica and a sentinel that watches them ────────────────────────────────────────


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


# ── Slots of a cluster that move from one server to another while a test works ───────────────────


def slot_of(stream: str) -> int:
    """Return the slot of a stream."""
    return int(key_slot(stream_key(stream).encode()))


def owner(cluster: Cluster, slot: int) -> Server:
    """Return the node that has a slot, as the first node knows it."""
    with cluster.nodes[0].client() as admin:
        admin.response_callbacks.clear()
        table: list[Any] = admin.execute_command("CLUSTER", "SLOTS")
    port = next(place[1] for first, last, place, *_ in table if first <= slot <= last)
    return next(node for node in (*cluster.nodes, *cluster.replicas) if node.port == port)


class Move(NamedTuple):
    """A slot on its way, the servers that it leaves and reaches, and a client of each."""

    slot: int
    source: Server
    target: Server
    old: redis.Redis
    new: redis.Redis

    def begin(self) -> None:
        """Let calls for keys that have gone already be redirected."""
        self.new.execute_command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        self.old.execute_command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))

    def one_key(self) -> bool:
        """Move a key; returns whether there was one."""
        keys = self.old.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 1)
        if keys:
            self.old.execute_command("MIGRATE", "127.0.0.1", self.target.port, keys[0], 0, 5000)
        return bool(keys)

    def finish(self) -> None:
        """Move the keys that are left, and give the slot away."""
        while self.one_key():
            pass
        for node in (self.new, self.old):
            node.execute_command("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))

    def refusals(self, *codes: str) -> int:
        """Return how often the two servers have refused a call by one of these codes."""
        facts = [*self.old.info("errorstats").items(), *self.new.info("errorstats").items()]
        names = {f"errorstat_{code}" for code in codes}
        return sum(int(fact["count"]) for name, fact in facts if name in names)


@contextlib.contextmanager
def move_of(cluster: Cluster, stream: str) -> Iterator[Move]:
    """Prepare to move the slot of a stream to another server."""
    slot = slot_of(stream)
    source = owner(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    with source.client() as old, target.client() as new:
        yield Move(slot, source, target, old, new)
