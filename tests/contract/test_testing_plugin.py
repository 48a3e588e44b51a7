"""The pytest plugin, in a project of somebody else: found by itself, and no burden to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

USED = """
import asyncio
import sys
import headwater
import pytest

@pytest.mark.parametrize("turn", range(4))
def test_each_test_has_an_empty_store(hw, headwater_store, turn):
    assert hw is headwater_store
    assert hw.streams() == []
    with headwater.connect() as mine:
        mine.stream("rides").write("t", b"v")
    assert hw.stream("rides").info().last == 1

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_an_async_client_works_in_the_loop_of_a_plugin(async_hw, hw):
    await async_hw.queue("mail").push(b"v", delay_ms=60_000)
    hw.clock.advance(60_000)
    assert len(await async_hw.queue("mail").pop()) == 1

def test_and_without_a_plugin(async_hw, hw):
    async def write():
        return await async_hw.stream("rides").write("t", b"v")
    assert [asyncio.run(write()), asyncio.run(write())] == [1, 2]
    assert hw.stream("rides").info().last == 2

def test_a_fixture_of_the_project_takes_the_place_of_ours(async_hw):
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        one = 1
        assert one == 2
"""

UNUSED = """
import sys

def test_the_plugin_imports_nothing_of_headwater():
    assert "pytest_headwater" in sys.modules
    assert not [name for name in sys.modules if name.partition(".")[0] in ("headwater", "redis")]
"""


# Other plugins of this environment, which take longer to load than all of these tests.
OTHERS = ("xdist", "hypothesispytest", "timeout", "faulthandler", "cacheprovider", "looponfail")


def run(project: Path, source: str, *words: str) -> str:
    (project / "test_project.py").write_text(source)
    words += tuple(word for name in OTHERS for word in ("-p", f"no:{name}"))
    environment = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *words],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    return done.stdout + done.stderr


def test_a_project_has_stores_by_naming_a_fixture(tmp_path: Path) -> None:
    said = run(tmp_path, USED)
    assert "7 passed" in said, said


def test_who_uses_no_fixture_pays_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, UNUSED, "-p", "no:anyio")
    assert "1 passed" in said, said


def test_a_project_may_leave_the_plugin_out(tmp_path: Path) -> None:
    said = run(tmp_path, "def test_it(hw): ...", "-p", "no:anyio", "-p", "no:headwater")
    assert "fixture 'hw' not found" in said, said
