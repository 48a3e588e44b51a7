"""Views of a store: what the doctor found, and the server of a data directory."""

from __future__ import annotations

from headwater.store.checks import Finding, Verdict
from headwater.store.doctor import DoctorReport
from headwater.store.embedded import EmbeddedStatus
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
