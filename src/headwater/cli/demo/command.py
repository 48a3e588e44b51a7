"""The command ``headwater demo``: a store of its own, the story, and the verdict."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from headwater.cli import output
from headwater.cli.options import OtherStoreUrl, interruptible


def demo(
    messages: Annotated[
        int,
        typer.Option(min=1000, max=500_000, metavar="N", help="Show it with N messages."),
    ] = 10_000,
    store: OtherStoreUrl = None,
) -> None:
    """Show the log at work, with real crashes.

    It uses an embedded store in a temporary directory, and kills its server, too. The exit code is
    0 only if every claim was true.
    """
    from headwater.cli.demo.screen import DemoScreen
    from headwater.cli.demo.story import Story

    screen = DemoScreen()
    with interruptible(), _place(store) as (url, directory):
        story = Story(url, directory, messages, screen)
        with screen.shown():
            story.run()
    screen.claims(story.claims)
    false = sum(not claim.true for claim in story.claims)
    if false:
        output.say(f"{false} of {len(story.claims)} claims were false", "bold red")
        raise typer.Exit(1)
    output.say(f"all {len(story.claims)} claims were true", "green")


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, Path | None]]:
    """Yield the store to play on, and its directory when nobody else uses it."""
    if url is not None:
        yield url, None
        return
    from headwater.store import embedded

    parent = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    directory = parent / "store"
    try:
        yield f"embedded://{directory}", directory
    finally:
        embedded.discard(directory)
        shutil.rmtree(parent, ignore_errors=True)
