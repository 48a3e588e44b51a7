"""The doctor's checks of one server of a store; each check only reads."""

from __future__ import annotations

import datetime as dt
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import redis
import redis.exceptions

from headwater.errors import AccessDenied, StoreError, StoreTooOld
from headwater.store import faults, rights
from headwater.store.call import Call, Operation
from headwater.store.connections import StoreConnections, open_connections
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.library import (
    COUNTS_BY_HAND_MS,
    FORMAT,
    GREETING,
    KEY,
    VERSION,
    ClientKind,
    StoreRecord,
    format_of_ours,
    name_in_server,
    needs_loading,
    raise_format,
    read_record,
    release_of,
)
from headwater.store.presence import StoredNote, all_notes, keep_notes
from headwater.store.scrubbing import SCRUBBED
from headwater.store.store import Store
from headwater.store.transport import ServerConnections
from headwater.store.url import resolve

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


# ── Past checks ───────────────────────────────────────────────────────────────────────────────────
# When a store was last scrubbed, and how the last ``headwater verify`` ended that was noted in it.
#
# A scrub reads this store itself. A verify kills processes and a server with kill -9, so it works
# on a private store of its own; what it proves holds for this release on that machine, not for the
# data here. Its note says so.


VERIFIED: Final = "hw:{verified}"
_NEWEST: Final = "newest"


class VerifyNote(msgspec.Struct, frozen=True):
    """What is kept of a verify: its seed, what was killed, how much was checked, what was wrong."""

    seed: int
    seconds: float
    killed: dict[str, int]
    messages: int
    anomalies: int
    release: str
    host: str

    @property
    def faults(self) -> int:
        """How many times something was killed."""
        return sum(self.killed.values())


class PastVerify(NamedTuple):
    """A verify that was noted at a time of the store's clock."""

    at_ms: int
    note: VerifyNote

    def __str__(self) -> str:
        note = self.note
        ended = f"{note.anomalies} anomalies" if note.anomalies else "nothing lost or twice"
        kills = "1 kill" if note.faults == 1 else f"{note.faults} kills"
        return f"{ended}; seed {note.seed}, {kills}, release {note.release}, on a private store"


class PastScrub(NamedTuple):
    """A scrub of the whole store that was noted."""

    at_ms: int
    defects: int


class PastChecks(NamedTuple):
    """The last verify and the last scrub; None where none was noted."""

    verify: PastVerify | None
    scrub: PastScrub | None


def note_verify(note: VerifyNote) -> Operation[None]:
    """Note how a verify ended, in place of the one before."""
    facts = msgspec.json.encode(note)
    yield from keep_notes(VERIFIED, {_NEWEST: facts}, most=1, replace=True)


def past_checks() -> Operation[PastChecks]:
    """Return the last verify and the last scrub that are noted."""
    verify = _verify_of((yield from all_notes(VERIFIED)).get(_NEWEST))
    reply = yield Call("hw_note_list", SCRUBBED, read_only=True)
    return PastChecks(verify, _scrub_of(reply))


def find_past_checks(server: CheckedServer) -> Iterator[Finding]:
    """Report what the last scrub and verify found; one server of a cluster has their notes."""
    try:
        scrub = _scrub_of(server.ask("HGETALL", SCRUBBED))
        noted = dict(_pairs(server.ask("HGETALL", VERIFIED))).get(_NEWEST.encode(), b"")
    except redis.ResponseError:
        return
    if scrub is None:
        yield Finding("scrub", "no run over all of the store yet (headwater scrub)", "ok")
    elif scrub.defects:
        cure = "headwater scrub shows them, headwater repair"
        yield Finding("scrub", f"{_time(scrub.at_ms)}: {scrub.defects} defects", "warn", cure)
    else:
        yield Finding("scrub", f"{_time(scrub.at_ms)}: sound", "ok")
    at_ms, _, facts = noted.partition(b" ")
    verify = _verify_of(StoredNote(int(at_ms), facts)) if at_ms.isdigit() else None
    if verify is None:
        yield Finding("verify", "no run recorded (headwater verify --note-in STORE)", "ok")
    elif verify.note.anomalies:
        cure = f"report it with its seed: headwater verify --seed {verify.note.seed}"
        yield Finding("verify", f"{_time(verify.at_ms)}: {verify}", "warn", cure)
    else:
        yield Finding("verify", f"{_time(verify.at_ms)}: {verify}", "ok")


def _verify_of(stored: StoredNote | None) -> PastVerify | None:
    if stored is None:
        return None
    try:
        return PastVerify(stored.at_ms, msgspec.json.decode(stored.text, type=VerifyNote))
    except msgspec.DecodeError:
        return None  # a newer release may write another form


def _scrub_of(reply: list[bytes]) -> PastScrub | None:
    note = dict(_pairs(reply))
    if b"time" not in note:
        return None
    return PastScrub(int(note[b"time"]), int(note.get(b"defects", 0)))


def _pairs(reply: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(reply[::2], reply[1::2], strict=True)


def _time(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat()[:19] + "Z"


# ── Doctor ────────────────────────────────────────────────────────────────────────────────────────
# The doctor: what a store really promises, by its settings and its state; it changes nothing.
#
# Each finding names what was checked, what was found, a verdict and the cure. "fail" means that
# acknowledged messages can be lost in normal operation, or that the store cannot be used; "warn"
# that they can be lost in a rare case, or that the server does not let us find out.


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings on one store, and the rights that its user needs."""

    where: str
    findings: tuple[Finding, ...]
    rules: str

    @property
    def verdict(self) -> Verdict:
        """The worst of all verdicts."""
        verdicts = {finding.verdict for finding in self.findings}
        return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"

    @property
    def summary(self) -> str:
        """A summary of the findings, in one line."""
        if self.verdict == "ok":
            return "what this store acknowledges survives a crash of the server and a power loss"
        worst = dict.fromkeys(f.check for f in self.findings if f.verdict == self.verdict)
        what = (
            "look at" if self.verdict == "warn" else "do not trust it with messages before you fix"
        )
        return f"{what}: {', '.join(worst)}"

    @property
    def durability(self) -> str:
        """What a crash and a power loss do to acknowledged messages, in a few words."""
        if self.verdict == "ok":
            return "survives kill -9 and power loss"
        for verdict in ("fail", "warn"):
            for finding in self.findings:
                if finding.check == "persistence" and finding.verdict == verdict:
                    # The consequence comes last, after how the server syncs.
                    return re.split("[:;] ", finding.found)[-1]
        return self.summary


def examine(url: str | None = None) -> DoctorReport:
    """Examine a store; a store that cannot be reached is a finding, too.

    Raises InvalidInput for an invalid URL.
    """
    address = resolve(url, default_directory())
    cluster = address.kind == "cluster"
    hold: EmbeddedServer | None = None
    connections: StoreConnections | None = None
    findings: list[Finding] = []
    try:
        if address.directory is not None:
            hold = EmbeddedServer.open(address.directory)
        connections = open_connections(address, hold)
        for server in _servers(connections, address.safe):
            findings += _examine_server(CheckedServer(server, address.safe, cluster))
    except StoreError as error:
        findings.append(_unable(error))
    finally:
        if connections is not None:
            connections.close()
        if hold is not None:
            hold.close()
    return DoctorReport(address.safe, _merged(findings), rights.rules(cluster))


def _servers(connections: StoreConnections, where: str) -> list[ServerConnections]:
    try:
        return connections.servers()
    except (redis.RedisError, OSError) as error:
        raise explained(error, where) from error


def _unable(error: StoreError) -> Finding:
    """Make a finding of an error, whose message ends with the cure."""
    found, _, cure = str(error).rpartition("; ")
    check = "access" if isinstance(error, AccessDenied) else "connection"
    return Finding(check, found or cure, "fail", cure if found else "")


def _merged(findings: list[Finding]) -> tuple[Finding, ...]:
    """Report once what is the same on every server of a cluster; checks stay in their order."""
    servers = {finding.server for finding in findings}
    order = list(dict.fromkeys(finding.check for finding in findings))
    merged: list[Finding] = []
    for finding in sorted(findings, key=lambda finding: order.index(finding.check)):
        twins = {f.server for f in findings if f._replace(server=finding.server) == finding}
        if len(servers) > 1 and twins == servers:
            finding = finding._replace(server="all")  # noqa: PLW2901
        if finding not in merged:
            merged.append(finding)
    return tuple(merged)


def _examine_server(server: CheckedServer) -> Iterator[Finding]:
    server.learn()
    for check in (*CHECKS, find_past_checks):
        for finding in check(server):
            yield finding._replace(server=server.name)


# ── Upgrades ──────────────────────────────────────────────────────────────────────────────────────
# An upgrade by hand: which clients and libraries a store has, and what may change.
#
# Nothing here is needed for an upgrade: a newer format comes into use by itself when older clients
# were not seen for some days. An operator who knows that they are gone need not wait for that.


_LIBRARY = re.compile(rb"headwater_(\d+)")


@dataclass(frozen=True, slots=True)
class StoreUpgrade:
    """The state of a store: the format in use, the clients seen, the versions of its library."""

    where: str
    record: StoreRecord
    versions: tuple[int, ...]

    @property
    def raises_format(self) -> bool:
        """Whether a newer format could be used."""
        return self.record.format < FORMAT

    @property
    def older(self) -> tuple[ClientKind, ...]:
        """The kinds of client that do not understand our format, whenever they were seen."""
        return tuple(kind for kind in self.record.seen if kind.format < FORMAT)

    @property
    def unused(self) -> tuple[int, ...]:
        """The versions of the library that no client was seen to use."""
        used = {VERSION, *(kind.version for kind in self.record.seen)}
        return tuple(version for version in self.versions if version not in used)


def examine_upgrade(store: Store) -> StoreUpgrade:
    """Look at the record and the libraries of a store."""
    found = {version for _, versions in _libraries(store) for version in versions}
    return StoreUpgrade(store.where, store.run(read_record()), tuple(sorted(found)))


def upgrade(store: Store, *, force: bool = False) -> None:
    """Use our format, and remove libraries that no client was seen to use.

    Raises StoreError, before anything is changed, when clients were seen in the last minutes that
    do not understand the format, unless forced: they get FormatTooNew then.
    """
    older = store.run(raise_format(0 if force else COUNTS_BY_HAND_MS))
    if older:
        minutes, releases = COUNTS_BY_HAND_MS // 60_000, ", ".join(dict.fromkeys(older))
        raise StoreError(
            f"clients of release {releases} do not understand format {FORMAT}, "
            f"and were seen at {store.where} in the last {minutes} minutes; upgrade or stop them "
            "first, or force it, and they are refused from then on"
        )
    store.note_release()
    unused = examine_upgrade(store).unused
    for server, versions in _libraries(store):
        for version in versions:
            if version in unused:
                server.send("", ("FUNCTION", "DELETE", f"headwater_{version}"), fresh=True)


def _libraries(store: Store) -> list[tuple[ServerConnections, list[int]]]:
    """Return every server with the versions of our library that it has."""
    found = []
    for server in store.connections.servers():
        listing = ("FUNCTION", "LIST", "LIBRARYNAME", "headwater_*")
        try:
            libraries = server.send("", listing, fresh=True)
        except redis.ResponseError as error:
            raise explained(error, store.where) from error
        names = (_LIBRARY.fullmatch(library[1]) for library in libraries)
        found.append((server, [int(name[1]) for name in names if name]))
    return found
