"""``headwater store``: the private server of a data directory, started and stopped by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.store.embedded import EmbeddedStatus

app = typer.Typer()


def _directory(url: str | None) -> Path:
    from headwater.store.directory import default_directory
    from headwater.store.url import resolve

    address = resolve(url, default_directory())
    if address.directory is None:
        raise InvalidInput(
            f"{address.safe} is not an embedded store; use --store embedded:///directory"
        )
    return address.directory


@app.command()
def start(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Start the server, and keep it running without users until `stop`."""
    from headwater.store import embedded

    _show(embedded.start(_directory(store)), as_json)


@app.command()
def stop(
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait for its users; they start it again.")
    ] = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop the server when its last user ends, or at once when it has none."""
    from headwater.store import embedded

    found = embedded.stop(_directory(store), now=now)
    _show(found, as_json)
    if found.running and not as_json:
        output.warn("it is in use, and ends with its last user; --now ends it at once")


@app.command()
def status(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show whether the server runs; starts nothing. The exit code is 0 either way."""
    from headwater.store import embedded

    _show(embedded.status(_directory(store)), as_json)


def _show(found: EmbeddedStatus, as_json: bool) -> None:
    if as_json:
        output.show_json(views.stores.EmbeddedView.of(found))
        return
    state = "loading its data" if found.loading else "running" if found.running else "not running"
    facts: list[tuple[str, object]] = [("directory", found.directory), ("server", state)]
    if found.running:
        facts += [
            ("version", found.version),
            ("pid", found.pid),
            ("socket", found.socket),
            ("ends", "by `headwater store stop`" if found.stays else "with its last user"),
        ]
    output.show_facts(facts)
