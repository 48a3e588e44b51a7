"""The program with all of its commands, for those who need them at once."""

from __future__ import annotations

from headwater.cli.program import every_command

app = every_command()
