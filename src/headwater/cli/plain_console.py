"""A console of Rich that reports when its reader has gone, instead of ending the program."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """Raises BrokenPipeError, which a command turns into its end."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError: Rich would end the program, with exit code 1."""
        raise BrokenPipeError
