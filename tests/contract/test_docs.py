"""Every example of the pages does what the page says, and every example program runs."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import django.conf
import django.utils.functional
import pytest
import sqlalchemy as sa

from headwater.store import embedded
from tests.support.page_commands import PageCommands
from tests.support.pages import ROOT, blocks, forms, pages, run_page


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty directory to work in, whose embedded store ends with the test."""
    directory = Path(tempfile.mkdtemp(prefix="hw-docs-"))
    monkeypatch.chdir(directory)
    for name in ("HEADWATER_URL", "HEADWATER_DIR"):
        monkeypatch.delenv(name, raising=False)
    # A page sets Django up as a program of its own does; other tests may have done so before.
    object.__setattr__(django.conf.settings, "_wrapped", django.utils.functional.empty)
    # A program that ends closes what the pools of its engines hold; a page does not end.
    pooled: list[object] = []
    note = partial(_note, pooled)
    sa.event.listen(sa.Pool, "connect", note)
    yield directory
    sa.event.remove(sa.Pool, "connect", note)
    for connection in pooled:
        if isinstance(connection, sqlite3.Connection):
            connection.close()
    embedded.stop(directory / ".headwater", now=True)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def commands() -> Iterator[PageCommands]:
    with PageCommands() as commands:
        yield commands


def _note(pooled: list[object], connection: object, _: object) -> None:
    pooled.append(connection)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


FORMS = [(page, form) for page in pages() if list(blocks(page)) for form in forms(page)]


@pytest.mark.parametrize(("page", "form"), FORMS, ids=lambda one: str(one).removeprefix(f"{ROOT}/"))
@pytest.mark.usefixtures("place")
def test_every_example_of_a_page_does_what_it_says(
    page: Path, form: str, commands: PageCommands
) -> None:
    run_page(page, form, commands)


def test_the_site_begins_with_the_example_of_the_readme() -> None:
    first, home = (next(blocks(ROOT / page)).text for page in ("README.md", "docs/index.md"))
    assert first == home


def test_the_readme_and_the_page_of_measurements_state_the_same_figures() -> None:
    readme, page = (
        (ROOT / name).read_text("utf-8") for name in ("README.md", "docs/discussion/speed.md")
    )
    section = readme.partition("## How fast, how small")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 5, "the table of the log is in the README"
    assert [row for row in rows if row not in page] == []


# Those for Spark run with the tests of Spark.
PROGRAMS = sorted(set((ROOT / "examples").glob("*.py")) - set((ROOT / "examples").glob("spark_*")))


@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_every_example_program_runs_and_ends(program: Path, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, program], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout, "an example shows something"
