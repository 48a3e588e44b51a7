"""The shell completes names of the store that a command would use, and makes no store for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import headwater
from headwater.cli.program import every_command
from tests.support.stores import Stores


def completed(capsys: pytest.CaptureFixture[str], words: str) -> list[str]:
    """Return what is offered for the last of some words, as bash asks for it."""
    from headwater.cli.program import narrowed

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_WORDS", f"headwater {words}")
        patch.setenv("COMP_CWORD", str(len(words.split(" "))))
        patch.setenv("_HEADWATER_COMPLETE", "complete_bash")
        with pytest.raises(SystemExit):
            narrowed(())(prog_name="headwater")
    return capsys.readouterr().out.split()


def test_names_of_the_store_are_completed(
    stores: Stores, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        hw.stream(name).write("t", b"1")
        hw.stream(name).group("g-one").read(1)
        hw.queue(name).push(b"1")
        hw.topic(name, partitions=2).write("t", b"1")
        hw.topic(name).group("g-two").read(1)
        hw.ick_channel(name).add({"m": 1.0})
        hw.stream(name).register_reader("r-one", 1)
    part = name[:-2]
    for words in (
        f"stream read {part}",
        f"stream groups {part}",
        f"topic read {part}",
        f"topic groups {part}",
        f"queue pop {part}",
        f"reader list {part}",
        f"ick channel stats {part}",
        f"spark totals {part}",
    ):
        assert name in completed(capsys, f"--store {url} {words}")
    assert completed(capsys, f"--store {url} stream seek {name} g") == ["g-one"]
    assert completed(capsys, f"--store {url} topic seek {name} g") == ["g-two"]
    assert completed(capsys, f"--store {url} reader forget {name} r") == ["r-one"]


def test_nothing_is_completed_where_no_store_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in ("HEADWATER_URL", "HEADWATER_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    assert completed(capsys, "stream read r") == []
    assert completed(capsys, "--store redis://localhost:1 stream read r") == []
    assert list(tmp_path.iterdir()) == []


def arguments(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a command and of all below it, each with where it is."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from arguments(inner, f"{path} {name}")
    yield from ((path, one) for one in command.params if one.param_type_name == "argument")


def test_no_argument_that_names_an_object_is_completed_by_files() -> None:
    named = ("STREAM", "TOPIC", "QUEUE", "GROUP", "CHANNEL", "READER")
    found = [
        (path, one.metavar)
        for path, one in arguments(typer.main.get_command(every_command()))
        if str(one.metavar).strip("[].") in named and one._custom_shell_complete is None
    ]
    assert found == []
