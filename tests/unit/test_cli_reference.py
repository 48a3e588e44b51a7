"""The reference of the command line tells of every command and option, and of no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from headwater.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
# The last two are those of every job on Spark.
EVERYWHERE = {"--store", "--json", "--help", "--version", "--master", "--conf"}


def commands(command: Any, name: str = "headwater") -> Iterator[tuple[str, set[str]]]:
    """Return every command with the long names of its own options."""
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from commands(inner, f"{name} {word}")
        return
    words = {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }
    yield name, words - EVERYWHERE


def sections() -> dict[str, set[str]]:
    """Return every command of the page with the options that its section lists."""
    parts = re.split(r"^#{2,3} (headwater[^\n]*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {
        title: set(re.findall(r"--[a-z-]+", "\n".join(re.findall(r"^\| (`--.*?) \|", text, re.M))))
        - EVERYWHERE
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_command_and_option_is_in_the_reference_and_no_other() -> None:
    told, real = sections(), dict(commands(get_command(app)))
    groups = {title for title in told if any(name.startswith(f"{title} ") for name in real)}
    assert {title: words for title, words in told.items() if title not in groups} == real
