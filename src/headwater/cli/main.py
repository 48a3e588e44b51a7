"""The program `headwater` with all of its commands; to run one of them, `narrowing` is faster."""

from __future__ import annotations

from headwater.cli.narrowing import every_command

app = every_command()
