"""What is imported before somebody at a prompt sees the first answer: a budget, held by counting.

Importing is nearly all of the time of a command. A library that is named here takes longer to
import than a command needs to run; the numbers bound what is ours.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs a program, then writes the name of each module that it has imported to a file.
NOTING = """
import sys
place, *words = sys.argv[1:]
sys.argv = ["headwater", *words]
try:
    {program}
finally:
    names = [name for name, module in list(sys.modules.items()) if module is not None]
    open(place, "w").write("\\n".join(names))
"""
COMMAND = "from headwater.__main__ import main; main()"
# Libraries that are imported when they are needed, and not before.
LARGE = {
    *("asyncio", "msgspec", "pyarrow", "redis", "rich", "markdown_it", "pydantic"),
    *("sqlalchemy", "pyspark", "jinja2", "httptools", "opentelemetry", "uvloop"),
}
# The help is made by Typer with Rich; its releases differ in what they check types with.
HELP = {"rich", "markdown_it", "pydantic"}
# redis-py brings asyncio, and OpenTelemetry where that is installed.
STORE = {"asyncio", "msgspec", "redis", "opentelemetry", "pydantic"}


def imported(program: str, *words: str, cwd: Path) -> set[str]:
    """Return all modules that a program has imported when it ends, which must be with code 0."""
    place = cwd / "imported.txt"
    done = subprocess.run(
        [sys.executable, "-c", NOTING.format(program=program), place, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(place.read_text().split())


def large(modules: set[str]) -> set[str]:
    return LARGE & {name.partition(".")[0] for name in modules}


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.startswith("headwater."))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--help",), 46),
        (("--version",), 20),
        (("stream", "--help"), 46),
        (("queue", "stats", "--help"), 46),
        (("serve", "--help"), 30),
    ],
)
def test_help_imports_no_client_and_few_modules(
    words: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    found = imported(COMMAND, *words, cwd=tmp_path)
    assert large(found) <= HELP
    assert len(ours(found)) <= most, ours(found)


def test_the_help_of_the_program_imports_no_group_of_commands(tmp_path: Path) -> None:
    found = imported(COMMAND, "--help", cwd=tmp_path)
    assert not found & {"headwater.cli.stream", "headwater.cli.queue", "headwater.cli.spark"}


def test_a_command_imports_what_it_needs(tmp_path: Path) -> None:
    """On an embedded store, which the first of them makes."""
    budgets = [
        (("queue", "push", "jobs", "one"), STORE, 90),
        (("queue", "stats", "jobs", "--json"), STORE, 90),
        (("ick", "add", "dirty", "ada", "1"), STORE, 72),
        (("stream", "write", "rides", "ride-1", "requested"), STORE | {"pyarrow"}, 120),
        (("stream", "read", "rides", "--json"), STORE | {"pyarrow"}, 120),
        (("stream", "info", "rides", "--json"), STORE | {"pyarrow"}, 120),
    ]
    for words, allowed, most in budgets:
        found = imported(COMMAND, *words, cwd=tmp_path)
        assert large(found) <= allowed, words
        assert len(ours(found)) <= most, (words, ours(found))
        groups = {name.split(".")[2] for name in ours(found) if name.startswith("headwater.cli.")}
        assert not groups & ({"stream", "queue", "ick", "spark", "topic"} - {words[0]}), words


@pytest.mark.parametrize(
    ("program", "allowed", "most"),
    [
        ("import headwater", set(), 5),
        ("import headwater; headwater.connect().queue('jobs').push(b'1')", STORE, 64),
        ("import headwater; headwater.connect().stream('a').write('a', b'1')", None, 84),
    ],
)
def test_a_program_imports_what_it_uses(
    program: str, allowed: set[str] | None, most: int, tmp_path: Path
) -> None:
    found = imported(program, cwd=tmp_path)
    assert large(found) <= (STORE | {"pyarrow"} if allowed is None else allowed)
    assert len(ours(found)) <= most, ours(found)
