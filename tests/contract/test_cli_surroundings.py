"""The program in odd surroundings: closed streams, a directory or a home that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater import EmbeddedServerFailed
from headwater.store import embedded
from tests.support.commands import PROGRAM, Answer
from tests.support.stores import Stores


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with an embedded store of its own, which is stopped at the end."""
    yield tmp_path
    embedded.stop(tmp_path / ".headwater", now=True)


def shell(script: str, *words: str | Path, cwd: Path, **variables: str) -> Answer:
    """Run a line of sh, in which "$@" is a command, without the variables of Headwater."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("HEADWATER")}
    done = subprocess.run(
        ["sh", "-c", script, "sh", *words],
        cwd=cwd,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_a_closed_input_holds_no_lines(place: Path) -> None:
    said = shell('"$@" <&-', PROGRAM, "stream", "write", "rides", cwd=place)
    assert (said.code, said.err) == (0, "")
    assert "written 0 messages" in said.out
    said = shell('"$@" <&-', PROGRAM, "queue", "push", "jobs", cwd=place)
    assert (said.code, said.out, said.err) == (0, "pushed 0 messages\n", "")


def test_nobody_can_confirm_by_a_closed_input(place: Path) -> None:
    assert shell('"$@"', PROGRAM, "stream", "write", "rides", "a", "1", cwd=place).code == 0
    said = shell('"$@" <&-', PROGRAM, "stream", "delete", "rides", cwd=place)
    assert said.code == 1
    assert said.err.splitlines()[-1] == (
        "error: nothing was removed; without a terminal, say --yes"
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_with_closed_streams(place: Path, closed: str) -> None:
    assert shell(f'"$@" {closed}', PROGRAM, "stream", "write", "a", "t", "1", cwd=place).code == 0
    said = shell('"$@"', PROGRAM, "stream", "read", "a", "--json", cwd=place)
    assert said.row["value"] == "1"
    assert shell(f'"$@" {closed}', PROGRAM, "stream", "read", "none", cwd=place).code == 1


def test_a_removed_directory_is_named_where_it_matters(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    said = shell('rmdir "$PWD"; "$@"', PROGRAM, "stream", "list", cwd=gone)
    assert said.code == 1
    assert "the current directory was removed" in said.err.splitlines()[-1]
    assert "Traceback" not in said.err
    gone.mkdir()
    said = shell('rmdir "$PWD"; "$@"', PROGRAM, "--profile", "x", "stream", "list", cwd=gone)
    assert said.code == 1
    assert "there is no headwater.toml" in said.err


def test_another_store_needs_no_current_directory(stores: Stores, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    words = (PROGRAM, "stream", "list", "--store", stores.url("plain"))
    assert shell('rmdir "$PWD"; "$@"', *words, cwd=gone).code == 0


def test_a_completion_that_cannot_be_installed_is_one_line(tmp_path: Path) -> None:
    # It is installed for the shell that runs it; two commands, so that bash stays.
    under_bash = """bash -c '"$@"; exit $?' bash "$@" """
    said = shell(under_bash, PROGRAM, "--install-completion", cwd=tmp_path, HOME="/proc")
    assert said.code == 1
    assert said.err.startswith("error: cannot install the completion: ")
    assert said.err.count("\n") == 1
    assert "--show-completion" in said.err


def test_commands_run_without_docstrings(place: Path) -> None:
    said = shell('"$@"', sys.executable, "-OO", "-m", "headwater", "--help", cwd=place)
    assert (said.code, said.err) == (0, "")
    words = ("-OO", "-m", "headwater", "stream", "write", "rides", "a", "1")
    said = shell('"$@"', sys.executable, *words, cwd=place)
    assert (said.code, said.out, said.err) == (0, "1\n", "")


def test_a_path_that_needs_a_link_names_where_none_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", "/proc")  # where not even root makes a link
    long = tmp_path / ("x" * 200)
    with pytest.raises(EmbeddedServerFailed, match=r"too long for a socket.*/proc: .*\$TMPDIR"):
        headwater.connect(f"embedded://{long}")
