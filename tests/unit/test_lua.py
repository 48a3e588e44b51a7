"""Every server function tells its contract, and is there because something calls it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headwater
from headwater.store.library import library

ROOT = Path(headwater.__file__).parent
FILES = sorted(ROOT.glob("*/lua/**/*.lua"))
REGISTERED = re.compile(r"register_function(?:\('|\{\s*function_name = ')(hw_\w+)'")
COMMENT = re.compile(r"--\[\[(.*?)\]\]", re.DOTALL)


def functions() -> dict[str, Path]:
    return {name: file for file in FILES for name in REGISTERED.findall(file.read_text())}


def header_of(name: str) -> str:
    """Find the comment that introduces a function: it names it before its first colon."""
    comments = COMMENT.findall(functions()[name].read_text())
    found = [text for text in comments if re.search(rf"\b{name}\b", text.partition(":")[0])]
    assert len(found) == 1, f"{name} has {len(found)} headers"
    return str(found[0])


@pytest.mark.parametrize("name", functions())
def test_a_function_says_its_purpose_keys_arguments_and_reply(name: str) -> None:
    header = header_of(name)
    purpose = header.partition(":")[2].split("KEYS")[0]
    assert len(purpose.split()) >= 3
    assert re.search(r"\n\s*KEYS\s+\S", header)
    assert re.search(r"\n\s*Reply\s+\S", header)


# Those of queues still read arguments where they need them.
NAMED = {name: file for name, file in functions().items() if file.parts[-3] != "queue"}


def body_of(name: str) -> str:
    source = functions()[name].read_text()
    return source[source.index(f"'{name}'") :].partition("--[[")[0]


def listed_arguments(name: str) -> list[int]:
    """Return the numbers of the arguments in a header; the last may stand for all from it on."""
    section = re.search(r"\n\s*ARGV\s+(.*?)\n\s*Reply\b", header_of(name), re.DOTALL)
    arguments = section[1] if section else ""
    return [int(number) for number in re.findall(r"(?:^|\s{2,})(\d+)(?:\.\.)? ", arguments)]


@pytest.mark.parametrize("name", NAMED)
def test_a_header_lists_arguments_in_order(name: str) -> None:
    listed = listed_arguments(name)
    assert listed == list(range(1, len(listed) + 1))


@pytest.mark.parametrize("name", NAMED)
def test_a_function_names_its_arguments_first_and_in_order(name: str) -> None:
    """An argument is read by its number once, in the statements at the top; then it has a name."""
    used = [int(number) for number in re.findall(r"\bargs\[(\d+)\]", body_of(name))]
    assert used == sorted(set(used)), f"{name} reads {used}"
    assert used == listed_arguments(name)[: len(used)], f"{name} reads {used}"
    lines = [line for line in body_of(name).splitlines() if re.search(r"args\[\d+\]", line)]
    assert all(line.lstrip().startswith("local ") for line in lines), lines


def test_what_functions_share_reads_no_argument_by_its_number() -> None:
    for file in (file for file in FILES if "queue" not in file.parts):
        bodies = "".join(body_of(name) for name, place in NAMED.items() if place == file)
        found = re.findall(r"\bargs\[\d+\]", COMMENT.sub("", file.read_text()))
        assert len(found) == len(re.findall(r"\bargs\[\d+\]", bodies)), file


def test_every_function_that_is_called_exists_and_every_one_that_exists_is_called() -> None:
    sources = [file.read_text() for file in ROOT.rglob("*.py")]
    called = {name for text in sources for name in re.findall(r"[\"'](hw_\w+)[\"']", text)}
    assert called == set(functions())


def test_the_library_holds_every_file_once() -> None:
    source = library().source
    for file in FILES:
        assert source.count(file.read_text()) == 1, file


def test_every_shared_file_tells_its_idea_first() -> None:
    for file in FILES:
        assert file.read_text().startswith("--[["), file


def test_no_call_is_given_the_negative_of_a_number() -> None:
    """Lua's negative of 0 is -0, which Redis 7.0 does not take for a number; write 0 - n."""
    for file in FILES:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            assert not re.search(r"redis\.call\(.*, -[a-z(]", line), f"{file}:{number}"
