"""The doctor's checks of one server of a store; each check only reads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import redis
import redis.exceptions

from headwater.errors import StoreError, StoreTooOld
from headwater.store import faults, rights
from headwater.store.connections import ServerConnections
from headwater.store.library import (
    FORMAT,
    VERSION,
    format_of_ours,
    name_in_server,
    needs_loading,
    release_of,
)
from headwater.store.record import KEY
from headwater.store.steps import GREETING

Verdict: TypeAlias = Literal["ok", "warn", "fail"]

SLOTS = 16384
_SLOW_MS = 20.0
_FULL, _OVERFULL = 0.8, 0.95
_ROUND_TRIPS = 7


class Finding(NamedTuple):
    """One thing that was checked; ``server`` names the node of a cluster, or is empty."""

    check: str
    found: str
    verdict: Verdict
    cure: str = ""
    server: str = ""


def explained(error: Exception, where: str) -> StoreError:
    """Return the error that a user would see for a failed connection or a refusal."""
    try:
        faults.Recovery(GREETING, where, patience_s=0).next_step(error)
    except StoreError as found:
        return found
    return StoreError(f"the store at {where} cannot serve now: {error}; try again later")


class CheckedServer:
    """One server: its INFO, its settings as far as it shows them, and a way to send commands."""

    def __init__(self, connections: ServerConnections, where: str, cluster: bool) -> None:
        self._connections = connections
        self.where = where
        self.cluster = cluster
        self.info: dict[str, str] = {}
        self.name = ""

    def ask(self, *words: Any) -> Any:
        """Run a command; raises redis.ResponseError when refused, StoreError when out of reach."""
        try:
            return self._connections.send("", words, fresh=True)
        except redis.ResponseError:
            raise
        except (redis.RedisError, OSError) as error:
            raise explained(error, self.where) from error

    def learn(self) -> None:
        """Read the server's INFO; raises StoreError when it refuses."""
        try:
            self.info = faults.parse_info(self.ask("INFO"))
        except redis.ResponseError as error:
            raise explained(error, self.where) from error
        if self.cluster:
            self.name = self._address()

    def _address(self) -> str:
        """Return the address of a node as the others know it; its port if it may not be asked."""
        try:
            rows: list[str] = self.ask("CLUSTER", "NODES").decode().splitlines()
        except redis.ResponseError:
            return f"port {self.info['tcp_port']}"
        return next(row.split()[1].partition("@")[0] for row in rows if "myself" in row)

    def setting(self, name: str) -> str | None:
        """Return a setting, or None when the server does not show it."""
        try:
            reply = self.ask("CONFIG", "GET", name)
        except redis.ResponseError:
            return None
        return reply[1].decode() if reply else None

    def number(self, name: str) -> int:
        """Return a number of INFO; 0 when it is missing."""
        return int(self.info.get(name, 0))


def _server(server: CheckedServer) -> Iterator[Finding]:
    try:
        yield Finding("server", faults.check_server(server.info, server.where), "ok")
    except StoreTooOld as error:
        yield Finding(
            "server", error.found, "fail", "upgrade it to Redis 7.0 or Valkey 7.2, or later"
        )
    if server.info.get("role") == "slave":
        yield Finding("role", "a replica: it refuses writes", "fail", "use the primary's URL")
    elif server.info.get("cluster_enabled") == "1" and not server.cluster:
        yield Finding(
            "role",
            "one node of a cluster",
            "fail",
            "use a redis+cluster:// or rediss+cluster:// URL",
        )
    if server.number("loading"):
        yield Finding("loading", "still reads its data from disk", "warn", "wait for it")


def _latency(server: CheckedServer) -> Iterator[Finding]:
    times = []
    for _ in range(_ROUND_TRIPS):
        began = time.perf_counter()
        server.ask("INFO", "server")
        times.append((time.perf_counter() - began) * 1000)
    median = statistics.median(times)
    # Vague on purpose: this is one sample, not a measurement.
    found = "under 1 ms" if median < 1 else f"about {median:.0f} ms"
    if median < _SLOW_MS:
        yield Finding("round trip", found, "ok")
    else:
        yield Finding("round trip", found, "warn", "write in batches, or run closer to the store")


def _persistence(server: CheckedServer) -> Iterator[Finding]:
    if server.number("aof_enabled"):
        yield _syncing(server)
        if server.setting("no-appendfsync-on-rewrite") == "yes":
            yield Finding(
                "fsync in rewrites",
                "off: while the append-only file is rewritten, a power loss takes what comes in",
                "warn",
                "CONFIG SET no-appendfsync-on-rewrite no",
            )
    else:
        cure = "CONFIG SET appendonly yes appendfsync always, then CONFIG REWRITE"
        snapshots = server.setting("save")
        if snapshots is None:
            found = (
                "no append-only file: a crash loses all since the last snapshot, if there is one"
            )
        elif snapshots:
            found = "snapshots only: a crash of the server loses all since the last one"
        else:
            found = "none: a restart of the server loses everything"
        yield Finding("persistence", found, "fail", cure)
    if server.info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            "disk", "the last write to the append-only file failed", "fail", "make room on its disk"
        )
    elif server.info.get("aof_last_bgrewrite_status", "ok") != "ok":
        yield Finding(
            "disk",
            "the last rewrite of the append-only file failed",
            "warn",
            "see the server's log",
        )
    elif server.info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding(
            "disk",
            "the last snapshot failed; the server may refuse writes for that",
            "warn",
            "make room on its disk, or turn snapshots off (save '')",
        )
    else:
        yield Finding("disk", "the last write went well", "ok")


def _syncing(server: CheckedServer) -> Finding:
    policy = server.setting("appendfsync")
    always = "CONFIG SET appendfsync always"
    if policy is None:
        found = "append-only file; the server does not show how often it is synced"
        return Finding("persistence", found, "warn", "ask its operator for appendfsync")
    if policy == "always":
        found = "synced before each answer: survives kill -9 of the server and a power loss"
        return Finding("persistence", found, "ok")
    if policy == "everysec":
        found = "synced each second: survives kill -9 of the server unless its disk is very slow; "
        found += "a power loss takes the last second or two"
        return Finding("persistence", found, "warn", always)
    found = "synced when the kernel likes: survives kill -9 of the server; a power loss takes "
    return Finding("persistence", found + "what came in within half a minute", "fail", always)


def _memory(server: CheckedServer) -> Iterator[Finding]:
    policy = server.info.get("maxmemory_policy")
    limit, used = server.number("maxmemory"), server.number("used_memory")
    if policy is None:
        yield Finding("eviction", "unknown", "warn", "make sure of maxmemory-policy noeviction")
    elif policy == "noeviction":
        yield Finding("eviction", "never: a full server refuses writes", "ok")
    elif policy.startswith("allkeys"):
        when = "a full server drops messages" if limit else "once maxmemory is set, drops messages"
        cure = "CONFIG SET maxmemory-policy noeviction"
        yield Finding("eviction", f"{policy}: {when}", "fail", cure)
    else:
        found = f"{policy}: a full server may drop what it just hands to a blocked member"
        yield Finding("eviction", found, "warn", "CONFIG SET maxmemory-policy noeviction")
    whole = limit or server.number("total_system_memory")
    if not whole:
        return
    share, of = used / whole, "maxmemory" if limit else "the machine's memory"
    found = f"{share:.0%} of {of} used" if share >= 0.01 else f"under 1% of {of} used"
    cure = "raise maxmemory, add retention, or evict" if limit else "add memory or retention"
    if share < _FULL:
        yield Finding("memory", found, "ok")
    else:
        yield Finding("memory", found, "fail" if share > _OVERFULL else "warn", cure)


def _replicas(server: CheckedServer) -> Iterator[Finding]:
    replicas = server.number("connected_slaves")
    least = server.setting("min-replicas-to-write")
    if not replicas and not int(least or 0):
        yield Finding("replicas", "none: this server has the only copy", "ok")
        return
    risk = "a failover loses acknowledged writes that were not replicated yet"
    if least is None:
        cure = "ask its operator for min-replicas-to-write"
        yield Finding("replicas", f"{replicas}: {risk}", "warn", cure)
    elif least == "0":
        cure = "CONFIG SET min-replicas-to-write 1 bounds how many"
        yield Finding("replicas", f"{replicas}: {risk}", "warn", cure)
    elif replicas < int(least):
        found = f"{replicas}, but {least} are asked for: it refuses writes"
        yield Finding("replicas", found, "fail", "bring the replicas back")
    else:
        lag = server.setting("min-replicas-max-lag")
        found = f"{replicas}, of which {least} may be at most {lag} s behind: {risk}, but no more"
        yield Finding("replicas", found, "ok")


def _functions(server: CheckedServer) -> Iterator[Finding]:
    try:
        found = server.ask("FCALL", name_in_server("hw_version"), 0).decode()
    except redis.exceptions.NoPermissionError:
        yield Finding("functions", "unknown: not allowed to ask", "fail", "grant the rights below")
        return
    except redis.ResponseError as error:
        if "Function not found" in str(error):
            yield Finding("functions", "not loaded yet: the first client loads them", "ok")
        else:
            yield Finding("functions", f"the server answers: {error}", "fail", "upgrade the server")
        return
    if format_of_ours(found):
        text = f"version {VERSION}, the same as here"
    elif needs_loading(found):
        text = f"version {VERSION}, of release {release_of(found)}: the next client replaces them"
    else:
        text = f"version {VERSION}, of the newer release {release_of(found)}, which is used"
    yield Finding("functions", text, "ok")


def _format(server: CheckedServer) -> Iterator[Finding]:
    try:
        found = server.ask("HGET", KEY, "format")
    except redis.ResponseError:
        # Another node of the cluster has the record; or the user lacks the right, as is said below.
        return
    in_use = int(found or 0)
    if in_use > FORMAT:
        text = f"{in_use}, and this client understands formats up to {FORMAT}"
        yield Finding("format", text, "fail", "upgrade the headwater package on this machine")
    elif in_use == FORMAT:
        yield Finding("format", f"{in_use}, the newest", "ok")
    elif in_use:
        text = f"{in_use}, as long as clients are there that do not understand {FORMAT}"
        yield Finding("format", text, "ok")


def _rights(server: CheckedServer) -> Iterator[Finding]:
    try:
        user = server.ask("ACL", "WHOAMI").decode()
        missing = rights.lacking(server.ask, user, server.cluster)
    except redis.ResponseError:
        found = "unknown: not allowed to ask"
        yield Finding("rights", found, "warn", "compare with the rights below, or grant +acl")
        return
    if missing:
        found = f"user {user} lacks {', '.join(missing)}"
        yield Finding("rights", found, "fail", "grant the rights below")
    else:
        yield Finding("rights", f"user {user} has all that are needed", "ok")


def _cluster(server: CheckedServer) -> Iterator[Finding]:
    if not server.cluster:
        return
    try:
        facts = faults.parse_info(server.ask("CLUSTER", "INFO"))
    except redis.ResponseError:
        yield Finding("cluster", "unknown: not allowed to ask", "warn", "grant +cluster|info")
        return
    served = int(facts["cluster_slots_ok"])
    if served < SLOTS:
        found = f"{SLOTS - served} of {SLOTS} slots are not served: streams there are out of reach"
        yield Finding("cluster", found, "fail", "bring their nodes back, or assign their slots")
    elif facts["cluster_state"] != "ok":
        yield Finding("cluster", f"state {facts['cluster_state']}", "fail", "see CLUSTER NODES")
    else:
        yield Finding("cluster", f"{facts['cluster_size']} primaries serve all slots", "ok")


CHECKS: tuple[Callable[[CheckedServer], Iterator[Finding]], ...] = (
    _server,
    _cluster,
    _persistence,
    _memory,
    _replicas,
    _functions,
    _format,
    _rights,
    _latency,
)
