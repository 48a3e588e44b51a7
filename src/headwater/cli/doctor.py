"""``headwater doctor``: what the store really promises, as a table with a verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    strict: Annotated[
        bool, typer.Option("--strict", help="Make the exit code 1 on warnings, too.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what the store really promises, and change nothing.

    The exit code is 0 when the store can be trusted, else 1.
    """
    from headwater.store.doctor import examine

    report = examine(store)
    if as_json:
        output.show_json(views.stores.DoctorView.of(report))
    else:
        nodes = any(finding.server for finding in report.findings)
        output.show_table(
            [*(["server"] if nodes else []), "check", "verdict", "found", "cure"],
            [
                (
                    *([finding.server] if nodes else []),
                    finding.check,
                    finding.verdict,
                    finding.found,
                    finding.cure,
                )
                for finding in report.findings
            ],
            styles=_STYLES,
            fold=2,
        )
        if any("rights below" in f.cure or f.check == "access" for f in report.findings):
            output.say(f"The user needs these rights: {report.rules}")
        output.say(f"{report.verdict}: {report.summary} ({report.where})", _STYLES[report.verdict])
    failed = report.verdict == "fail" or (strict and report.verdict == "warn")
    raise typer.Exit(1 if failed else 0)
