"""What the demo prints: steps as they happen, live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from headwater.cli import output


class Claim(NamedTuple):
    """Something that was claimed: what was expected then, and what was found."""

    what: str
    expected: object
    found: object

    @property
    def true(self) -> bool:
        """Whether the claim was true."""
        return self.expected == self.found


class DemoScreen:
    """Shows one step after the other."""

    def __init__(self) -> None:
        self._console = output.console()
        self._past: list[Text] = []
        self._spinner: Spinner | None = None
        self._title = ""

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show what happens within."""
        if not self._console.is_terminal:
            yield
            return
        with Live(get_renderable=self._picture, console=self._console, refresh_per_second=12):
            yield

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step from its beginning to its end."""
        began = time.monotonic()
        self._title, self._spinner = title, Spinner("dots", title)
        yield
        self._spinner = None
        took = (f"{time.monotonic() - began:5.2f} s  ", "dim")
        self._say(Text.assemble(took, (title, "bold")))

    def note(self, text: str) -> None:
        """Show a line within a step."""
        self._say(Text(f"         {text}"))

    def progress(self, text: str) -> None:
        """Show the progress of the step, while it lasts, on a terminal only."""
        if self._spinner is not None:
            self._spinner.update(text=f"{self._title}: {text}")

    def claims(self, claims: list[Claim]) -> None:
        """Show what was claimed, and whether it was true."""
        output.show_table(
            ["true", "claim", "expected", "found"],
            [("yes" if c.true else "NO", c.what, c.expected, c.found) for c in claims],
            styles={"yes": "green", "NO": "bold red"},
            fold=3,
        )

    def _say(self, line: Text) -> None:
        if self._console.is_terminal:
            self._past.append(line)
        else:
            self._console.print(line)

    def _picture(self) -> RenderableType:
        return Group(*self._past, *([self._spinner] if self._spinner else []))
