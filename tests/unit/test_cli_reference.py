"""The reference of the command line describes every command, argument, option and default.

And no other: what it names is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headwater.cli.program import app, spelled
from headwater.timeline.farm.reading import READ_STRATEGIES
from headwater.timeline.farm.repairing import REPAIR_STRATEGIES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SHARED = "What all commands share"
# The one command that takes the options of another group: those of a farm.
BORROWED = {"headwater spark walk": "headwater timeline"}
# Set by a command for what it starts, or read by the library.
OTHER_VARIABLES = {"HEADWATER_ID", "HEADWATER_ATTEMPT", "HEADWATER_URL"}


class Flag(NamedTuple):
    """An option of a command: all its spellings, its default as text, its variable."""

    spellings: frozenset[str]
    default: str | None
    variable: str | None
    required: bool


class Usage(NamedTuple):
    """What a command takes."""

    arguments: str
    flags: list[Flag]


def usages(command: Any, name: str = "headwater") -> Iterator[tuple[str, Usage]]:
    """Yield every command with what it takes."""
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from usages(inner, f"{name} {word}")
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    yield name, Usage(" ".join(map(spelled, arguments)), [flag_of(option) for option in options])


def flag_of(option: Any) -> Flag:
    default = getattr(option.default, "value", option.default)
    said = None if default in (None, False, ()) or option.is_flag else str(default)
    spellings = frozenset((*option.opts, *option.secondary_opts))
    return Flag(spellings, said, option.envvar, option.required)


class Row(NamedTuple):
    """A row of a table of options: the options that it names, and all of its text."""

    spellings: frozenset[str]
    text: str


def sections(page: str) -> dict[str, tuple[str, list[Row]]]:
    """Return the sections of a page by their titles: the text and the rows of options of each."""
    parts = re.split(r"^#{2,3} ([^\n]*)$", page, flags=re.MULTILINE)[1:]
    return {
        title: (text, [row_of(row) for row in re.findall(r"^\| `--.*$", text, re.MULTILINE)])
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def row_of(row: str) -> Row:
    names = re.findall(r"`(-[^` ]+)[^`]*`", row.partition(" | ")[0])
    return Row(frozenset(names), row)


def faults(page: str) -> list[str]:
    """Return everything in which a page and the command line differ."""
    told, real = sections(page), dict(usages(get_command(app)))
    described = {title for title in told if title.startswith("headwater ")}
    groups = {" ".join(name.split()[:2]) for name in real if len(name.split()) > 2}
    found = [f"no section: {name}" for name in real if name not in described]
    found += [f"no such command: {name}" for name in described - set(real) - groups]
    for name in set(real) & described:
        found += command_faults(name, real[name], told, groups)
    for group in groups & set(told):
        inner = [real[name] for name in real if name.startswith(f"{group} ")]
        known = {spelling for one in inner for flag in one.flags for spelling in flag.spellings}
        for row in told[group][1]:
            found += [f"{group}: no command takes {one}" for one in row.spellings - known]
    variables = {flag.variable for usage in real.values() for flag in usage.flags}
    variables |= {getattr(option, "envvar", None) for option in get_command(app).params}
    named = set(re.findall(r"HEADWATER_\w+", page))
    return found + [f"no such variable: {one}" for one in named - variables - OTHER_VARIABLES]


def command_faults(
    name: str, usage: Usage, told: dict[str, tuple[str, list[Row]]], groups: set[str]
) -> Iterator[str]:
    text, own = told[name]
    above = [title for title in (SHARED, *groups) if f"{name} ".startswith(f"{title} ")]
    above += [SHARED, *([BORROWED[name]] if name in BORROWED else [])]
    rows = own + [row for title in above if title in told for row in told[title][1]]
    if usage.arguments and f"`{name} {usage.arguments}`" not in text.partition("|")[0]:
        yield f"{name}: the text does not show `{name} {usage.arguments}`"
    for flag in usage.flags:
        spelling = min(flag.spellings)
        row = next((row for row in rows if flag.spellings <= row.spellings), None)
        if row is None:
            yield f"{name}: no row for {'/'.join(sorted(flag.spellings))}"
            continue
        if flag.default is not None and f"`{flag.default}`" not in row.text:
            yield f"{name}: {spelling} has the default {flag.default}"
        if flag.variable and f"${flag.variable}" not in row.text:
            yield f"{name}: {spelling} is read from ${flag.variable}"
        if flag.required and "required" not in row.text:
            yield f"{name}: {spelling} is required"
    taken = {spelling for flag in usage.flags for spelling in flag.spellings}
    for row in own:
        yield from (f"{name}: does not take {one}" for one in row.spellings - taken)


def test_the_reference_and_the_command_line_say_the_same() -> None:
    assert faults(PAGE.read_text()) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("### headwater stream tail\n", "", "no section: headwater stream tail"),
        ("### headwater stream tail\n", "### headwater stream tial\n", "no such command"),
        (
            "| `--lines N`, `-n` |",
            "| `--lines N` |",
            "headwater stream tail: no row for --lines/-n",
        ),
        ("| `--keep N` |", "| `--kept N` |", "headwater stream evict: does not take --kept"),
        ("N messages; default `10000`", "N messages", "--messages has the default 10000"),
        ("`$HEADWATER_INSTANCES`", "`$HEADWATER_FARM`", "is read from $HEADWATER_INSTANCES"),
        ("`$HEADWATER_INSTANCES`", "`$HEADWATER_FARM`", "no such variable: HEADWATER_FARM"),
        ("| `--max-size N` |", "| `--max-sizes N` |", "no command takes --max-sizes"),
        ("run by a shell; required", "run by a shell", "--exec is required"),
        ("stream seek STREAM GROUP TO`", "stream seek STREAM GROUP`", "does not show"),
        ("| `--json` |", "| `--jsonl` |", "no row for --json"),
    ],
)
def test_a_page_that_is_wrong_is_found(before: str, after: str, fault: str) -> None:
    page = PAGE.read_text()
    assert before in page
    assert any(fault in found for found in faults(page.replace(before, after)))


def shown_help(*words: str) -> str:
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120"}).stdout


def test_help_shows_words_that_a_person_may_type() -> None:
    shown = shown_help("stream", "ack")
    assert "headwater stream ack [OPTIONS] STREAM GROUP OFFSET...\n" in plain(shown)
    for words in (("queue", "configure"), ("stream", "write"), ("timeline", "serve"), ()):
        text = shown_help(*words).partition("─ Options ")[2]
        assert text
        assert not re.search(r"<\w+( range)?>", text), words


def plain(shown: str) -> str:
    return re.sub(r" +\n", "\n", shown).replace("root ", "headwater ")


def test_the_page_names_the_commands_without_json() -> None:
    text = sections(PAGE.read_text())["JSON"][0]
    named = re.search(r"Commands without `--json`: (.*?)\.\n", text, re.DOTALL)
    assert named
    without = {
        name.removeprefix("headwater ")
        for name, usage in usages(get_command(app))
        if not any("--json" in flag.spellings for flag in usage.flags)
    }
    assert set(re.findall(r"`([^`]+)`", named[1])) == without


def test_help_and_page_name_every_strategy() -> None:
    serve = get_command(app).commands["timeline"].commands["serve"]  # type: ignore[attr-defined]
    helps = {option.opts[0]: option.help for option in serve.params}
    page = (PAGE.parent / "timeline.md").read_text()
    for option, strategies in (
        ("--read-strategy", READ_STRATEGIES),
        ("--repair-strategy", REPAIR_STRATEGIES),
    ):
        assert set(re.findall(r"\b(?:Send|All|No|Rate)\w+", helps[option])) == set(strategies)
        assert set(strategies) <= set(re.findall(r"\w+", page))
