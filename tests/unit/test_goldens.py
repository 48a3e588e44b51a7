"""The doors are as they were frozen: HTTP, commands, the console, the public names, the errors."""

from __future__ import annotations

import difflib

import pytest

from tests.support.goldens import FOLDER, GOLDENS, golden


@pytest.mark.parametrize("name", GOLDENS)
def test_a_door_changes_only_by_decision(name: str) -> None:
    frozen, now = (FOLDER / name).read_text("utf-8"), golden(name)
    changes = difflib.unified_diff(
        frozen.splitlines(), now.splitlines(), "frozen", "now", n=2, lineterm=""
    )
    if frozen != now:
        told = "\n".join(changes)
        pytest.fail(f"{name} differs; if that is meant: make derived\n{told}", pytrace=False)
