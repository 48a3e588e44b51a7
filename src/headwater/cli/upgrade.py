"""``headwater upgrade``: which releases use a store, and the step to a newer format by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl

if TYPE_CHECKING:
    from headwater.store.doctor import StoreUpgrade


def upgrade(
    yes: Annotated[
        bool, typer.Option("--yes", help="Make the changes; without it they are only shown.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Do so while older clients are there; they are refused from then on."
        ),
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show which releases use the store, and what could be upgraded.

    With --yes, the store uses the newest format that this release understands from then on, unless
    clients that do not understand it were seen in the last ten minutes, and libraries of functions
    that no client was seen to use for 14 days are removed. There is no way back from a newer
    format.
    """
    from headwater.store import doctor
    from headwater.store.store import Store

    opened = Store(store, wait_s=0)
    try:
        if yes:
            doctor.upgrade(opened, force=force)
        found = doctor.examine_upgrade(opened)
    finally:
        opened.close()
    if as_json:
        output.show_json(views.stores.UpgradeView.of(found, done=yes))
    else:
        _show(found)


def _show(found: StoreUpgrade) -> None:
    from headwater.store.library import FORMAT

    output.show_table(
        ["release", "contract", "understands format", "seen"],
        [
            (kind.release, kind.version, kind.format, _ago(found.record.now_ms - kind.seen_ms))
            for kind in found.record.seen
        ],
    )
    libraries = ", ".join(f"headwater_{version}" for version in found.versions)
    output.say(f"The servers have {libraries}; format {found.record.format} is in use.")
    if found.raises_format:
        output.say(f"Format {FORMAT} could be put to use: run it again with --yes.")
        older = ", ".join(dict.fromkeys(kind.release for kind in found.older))
        if older:
            output.say(f"Clients of release {older} would be refused.")
    if found.unused:
        unused = ", ".join(f"headwater_{version}" for version in found.unused)
        output.say(f"Nobody was seen to use {unused}: --yes removes it.")
    if not (found.raises_format or found.unused):
        output.say("There is nothing to upgrade.", "green")


def _ago(ms: int) -> str:
    minutes = max(ms, 0) // 60_000
    if minutes < 120:
        return f"{minutes} min ago" if minutes else "now"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} days ago"
