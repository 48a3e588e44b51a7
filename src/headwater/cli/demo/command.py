"""The command ``headwater demo``: a store of its own, the story, and the verdict."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
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

    It uses an embedded store in a temporary directory, and kills its server, too; its last lines
    say how to inspect the result. The exit code is 0 only if every claim was true.
    """
    from headwater.cli.demo.story import DemoScreen, Story

    screen = DemoScreen()
    with interruptible(), _place(store) as (url, directory):
        story = Story(url, directory, messages, screen)
        with screen.shown():
            story.run()
    screen.claims(story.claims)
    false = sum(not claim.true for claim in story.claims)
    if false:
        output.say(f"{false} of {len(story.claims)} claims were false", "bold red")
    else:
        output.say(f"all {len(story.claims)} claims were true", "green")
    if directory is not None:
        see = shlex.join(["headwater", "console", "--store", url])
        output.say(f"see what it made:  {see}{_extra_for_console()}")
        output.say(f"and remove it:     {shlex.join(['rm', '-r', str(directory.parent)])}")
    if false:
        raise typer.Exit(1)


def _extra_for_console() -> str:
    """Return what has to be installed before the console can be started; nothing if it can."""
    if find_spec("jinja2") and find_spec("httptools"):
        return ""
    return "  (needs pip install 'headwater[serve]')"


@contextmanager
def _place(url: str | None) -> Iterator[tuple[str, Path | None]]:
    """Yield the store to play on, and its directory when nobody else uses it.

    What was made stays, unless the block raises.
    """
    if url is not None:
        yield url, None
        return
    from headwater.store import embedded

    parent = Path(tempfile.mkdtemp(prefix="headwater-demo-"))
    directory = parent / "store"
    try:
        yield f"embedded://{directory}", directory
    except BaseException:
        embedded.discard(directory)
        shutil.rmtree(parent, ignore_errors=True)
        raise
