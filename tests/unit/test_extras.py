"""The base install: what works without the extras, and what names the extra that is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs a program as if the named modules were not installed.
WITHOUT = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
{program}
"""
CLI = "from headwater.cli.program import app; sys.argv[0] = 'headwater'; app()"
EXTRAS = (
    "sqlalchemy",
    "psycopg",
    "greenlet",
    "httptools",
    "uvloop",
    "jinja2",
    "markupsafe",
    "pyspark",
)


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    source = WITHOUT.format(missing=EXTRAS, program=program)
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
    )


def test_log_queue_dirty_list_and_timeline_need_no_extra(tmp_path: Path) -> None:
    program = """
import headwater, headwater.aio, headwater.outbox, headwater.timeline, headwater.spark
from headwater.serve import asgi_app
with headwater.connect() as hw:
    hw.stream("rides").write("ride-1", b"requested")
    hw.queue("jobs").push(b"one")
    hw.ick("dirty").add({"ada": 1.0})
    print(len(hw.stream("rides").read(1, 10)), hw.queue("jobs").stats().ready)
"""
    said = run(program, cwd=tmp_path)
    assert (said.stdout, said.returncode) == ("1 1\n", 0), said.stderr


@pytest.mark.parametrize(
    "arguments", [("--help",), ("stream", "list"), ("doctor",), ("top", "--once")]
)
def test_the_command_line_needs_no_extra(arguments: tuple[str, ...], tmp_path: Path) -> None:
    said = run(CLI, *arguments, cwd=tmp_path)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("outbox", "status", "--db", "sqlite:///app.db"), "sql"),
        (("timeline", "serve", "--instances", "127.0.0.1:1"), "serve"),
        (("serve",), "serve"),
        (("console", "--no-open"), "serve"),
        (("keep", "--metrics", "127.0.0.1:0"), "serve"),
        (("consumer", "list", "--db", "sqlite:///app.db"), "sql"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    arguments: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    said = run(CLI, *arguments, cwd=tmp_path)
    assert said.returncode == 1, said.stdout
    assert f"pip install 'headwater[{extra}]'" in " ".join(said.stderr.split())
    assert "Traceback" not in said.stderr


def test_a_class_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    said = run("from headwater.outbox import Outbox", cwd=tmp_path)
    assert said.stderr.splitlines()[-1] == (
        "headwater.errors.ExtraMissing: sqlalchemy is not installed; "
        "run pip install 'headwater[sql]'"
    )


def test_importing_the_outbox_brings_in_no_database(tmp_path: Path) -> None:
    look = "import headwater.outbox; print(*{'sqlalchemy', 'psycopg', 'redis'} & set(sys.modules))"
    assert run(look, cwd=tmp_path).stdout.strip() == ""
