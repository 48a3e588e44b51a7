"""Every strategy and hash of a list is offered, documented and refused under any other name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from headwater import InvalidInput
from headwater.cli.timeline import app
from headwater.timeline import Farm
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.farm.repairing import REPAIR_STRATEGIES
from headwater.timeline.pool import HASHES

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference" / "timeline.md").read_text("utf-8")
PROMISES = (ROOT / "src" / "headwater" / "timeline" / "README.md").read_text("utf-8")
LISTS = {
    "read_strategy": list(READ_STRATEGIES),
    "repair_strategy": list(REPAIR_STRATEGIES),
    "hash": list(HASHES),
}


def help_of(option: str) -> str:
    """Return the help of an option of ``headwater timeline serve``."""
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    (found,) = [one.help for one in command.params if one.name == option]
    return str(found)


def named_in(text: str, like: str) -> set[str]:
    return set(re.findall(rf"\b(?:{like})\b", text))


# What a name of the list looks like: so a text that offers one that is gone is found, too.
LIKE = {
    "read_strategy": r"Send[A-Z]\w+Read\w+",
    "repair_strategy": r"[A-Z]\w*Repairs",
    "hash": r"murmur\d|fnva?|crc\d*|sha\d+",
}


@pytest.mark.parametrize("option", LISTS)
def test_the_reference_the_help_and_the_docstring_name_all_of_a_list_and_no_other(
    option: str,
) -> None:
    (row,) = re.findall(rf"^\| `{option}` \| (.*) \|$", REFERENCE, re.MULTILINE)
    for text in (row, help_of(option), Farm.open.__doc__ or ""):
        assert named_in(text, LIKE[option]) == set(LISTS[option])


def test_the_promises_say_what_every_read_strategy_does() -> None:
    rows = re.findall(r"^\| (Send\w+) \|", PROMISES, re.MULTILINE)
    assert rows == LISTS["read_strategy"]


@pytest.mark.parametrize("option", LISTS)
def test_every_name_is_accepted_in_any_case_and_no_other(option: str) -> None:
    for name in LISTS[option]:
        for spelled in (name, name.lower(), name.upper()):
            Farm.open("localhost:1", **{option: spelled}).close()  # type: ignore[arg-type]
    for wrong in ("", "Sometimes", None):
        with pytest.raises(InvalidInput, match=f"{option} must be one of {LISTS[option][0]}"):
            Farm.open("localhost:1", **{option: wrong})  # type: ignore[arg-type]
