"""The doctor: what a store really promises, by its settings and its state; it changes nothing.

Each finding names what was checked, what was found, a verdict and the cure. "fail" means that
acknowledged messages can be lost in normal operation, or that the store cannot be used; "warn" that
they can be lost in a rare case, or that the server does not let us find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import redis

from headwater.errors import AccessDenied, StoreError
from headwater.store import rights
from headwater.store.checks import CHECKS, CheckedServer, Finding, Verdict, explained
from headwater.store.connections import ServerConnections, StoreConnections, open_connections
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.past_checks import find_past_checks
from headwater.store.url import resolve


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
