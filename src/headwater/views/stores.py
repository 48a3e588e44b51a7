"""Views of a store: what the doctor found, its releases, and the server of a data directory."""

from __future__ import annotations

from headwater.store.doctor import DoctorReport, Finding, StoreUpgrade, Verdict
from headwater.store.embedded import EmbeddedStatus
from headwater.store.library import FORMAT, VERSION
from headwater.views.record import View, copied


class EmbeddedView(View, frozen=True, kw_only=True):
    """The server of a data directory; ``pid`` and ``version`` are None unless it answers."""

    directory: str
    running: bool
    loading: bool
    stays: bool
    socket: str
    pid: int | None
    version: str | None

    @classmethod
    def of(cls, status: EmbeddedStatus) -> EmbeddedView:
        """Return the view of what is known of a server."""
        return cls(**copied(cls, status, directory=str(status.directory)))


class FindingView(View, frozen=True, kw_only=True):
    """One thing that the doctor checked; ``server`` names the node of a cluster, or is empty."""

    check: str
    found: str
    verdict: Verdict
    cure: str
    server: str

    @classmethod
    def of(cls, finding: Finding) -> FindingView:
        """Return the view of a finding."""
        return cls(**copied(cls, finding))


class DoctorView(View, frozen=True, kw_only=True):
    """All that the doctor found; ``rights`` are those that the user of the store needs."""

    store: str
    verdict: Verdict
    summary: str
    checks: list[FindingView]
    rights: str

    @classmethod
    def of(cls, report: DoctorReport) -> DoctorView:
        """Return the view of the doctor's report."""
        return cls(
            store=report.where,
            verdict=report.verdict,
            summary=report.summary,
            checks=[FindingView.of(finding) for finding in report.findings],
            rights=report.rules,
        )


class ClientKindView(View, frozen=True, kw_only=True):
    """A kind of client: release, version of its contract, newest format it knows, when it was seen.

    ``older`` says that it does not understand the newest format of the release that looks.
    """

    release: str
    contract: int
    format: int
    seen_ms: int
    older: bool


class UpgradeView(View, frozen=True, kw_only=True):
    """How a store stands between releases: its format, the clients that were seen, its libraries.

    ``newest_format`` and ``contract`` are those of the release that looks; ``unused`` are the
    versions of the library that no client was seen to use; ``done``: the upgrade was made.
    """

    store: str
    format: int
    newest_format: int
    contract: int
    clients: list[ClientKindView]
    libraries: list[int]
    unused: list[int]
    done: bool

    @classmethod
    def of(cls, found: StoreUpgrade, *, done: bool) -> UpgradeView:
        """Return the view of how a store stands."""
        return cls(
            store=found.where,
            format=found.record.format,
            newest_format=FORMAT,
            contract=VERSION,
            clients=[
                ClientKindView(
                    release=kind.release,
                    contract=kind.version,
                    format=kind.format,
                    seen_ms=kind.seen_ms,
                    older=kind in found.older,
                )
                for kind in found.record.seen
            ],
            libraries=list(found.versions),
            unused=list(found.unused),
            done=done,
        )
