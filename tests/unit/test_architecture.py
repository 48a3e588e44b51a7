"""ARCHITECTURE.md, CONTRIBUTING.md and the decisions say what is true of the code as it is now.

Each failure names what to change in which page.
"""

from __future__ import annotations

import importlib
import re
from collections import defaultdict
from pathlib import Path
from typing import get_args

import pytest

from headwater.kernel.profiles import FILE_NAME
from headwater.store import call
from tests.support.pages import ROOT, pages

SOURCE = ROOT / "src" / "headwater"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DECISIONS = ROOT / "docs" / "decisions"
KEYS = ROOT / "docs" / "reference" / "keys.md"

# Pages about the inside name files as they stand in src/headwater; pages for users name only files
# that begin with one of the folders of the repository.
INSIDE = [
    ARCHITECTURE,
    CONTRIBUTING,
    *sorted(DECISIONS.glob("*.md")),
    *sorted(SOURCE.glob("*/README.md")),
]
EVERYWHERE = [ARCHITECTURE, CONTRIBUTING, ROOT / "CHANGELOG.md", *pages()]
FOLDERS = ("src/", "tests/", "docs/", "bench/", "examples/")
SUFFIXES = (".py", ".lua", ".java", ".sql", ".md", ".toml", ".yml", ".txt")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def words(page: Path) -> list[str]:
    """Return what a page sets in backticks, outside of blocks of code."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


# ── Layers ───────────────────────────────────────────────────────────────────────────────────


# ── Names ────────────────────────────────────────────────────────────────────────────────────


def is_path(word: str) -> bool:
    if not re.fullmatch(r"[\w.*/-]+", word) or word.startswith(("/", ".")):
        return False
    return word.endswith(("/", *SUFFIXES))


def exists(word: str, page: Path) -> bool:
    """Return whether a path leads somewhere, from where a reader of the page would try."""
    pattern = word.rstrip("/")
    # A few last parts, as `node.py`, are enough where the text around them says in which folder.
    return any(any(place.glob(pattern)) for place in (ROOT, page.parent)) or any(
        (ROOT / "src").rglob(pattern)
    )


@pytest.mark.parametrize("page", INSIDE, ids=name_of)
def test_every_file_that_a_page_about_the_inside_names_exists(page: Path) -> None:
    gone = [word for word in words(page) if is_path(word) and not exists(word, page)]
    assert not gone, f"{name_of(page)} names files that are not there: {gone}"


@pytest.mark.parametrize("page", EVERYWHERE, ids=name_of)
def test_every_file_of_the_repository_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    named = re.findall(
        r"(?<![\w/.-])((?:src|tests|docs|bench|examples)/[\w./*-]*\w)(?![\w*{])", text
    )
    gone = [path for path in named if not exists(path, page) and not exists(f"{path}.py", page)]
    assert not gone, f"{name_of(page)} names files that are not there: {gone}"


@pytest.mark.parametrize("page", EVERYWHERE, ids=name_of)
def test_every_dotted_name_in_a_page_leads_to_something(page: Path) -> None:
    gone = [word for word in words(page) if re.fullmatch(r"headwater(\.\w+)+", word)]
    gone = [word for word in gone if word != FILE_NAME and not resolves(word)]
    assert not gone, f"{name_of(page)} names what cannot be imported: {gone}"


def resolves(name: str) -> bool:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_every_server_function_that_is_named_anywhere_exists() -> None:
    lua = sorted(SOURCE.glob("*/lua/**/*.lua"))
    functions = {
        name
        for file in lua
        for name in re.findall(
            r"register_function(?:\('|\{\s*function_name = ')(hw_\w+)'", file.read_text()
        )
    }
    assert functions
    gone = {
        f"{name_of(file)}: {name}"
        for file in [*EVERYWHERE, *lua]
        for name in re.findall(r"\bhw_[a-z_]*[a-z]\b", file.read_text("utf-8"))
        if name not in functions
    }
    assert not gone, f"these name server functions that do not exist: {sorted(gone)}"


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────

# By which letter the pages call the key of an object, and which package keeps it.
OWNERS = {"K": "log", "G": "log", "Q": "queue", "S": "ick"}


def made(package: str) -> set[str]:
    """Return the endings of keys that the Lua files of a package put behind the key of one."""
    text = "".join(file.read_text() for file in (SOURCE / package / "lua").rglob("*.lua"))
    return set(re.findall(r"\.\.\s*':([a-z_]+)[:']", text))


def told(page: Path) -> dict[str, set[str]]:
    """Return the endings of keys that a page names, as in K:tail, by package."""
    found = defaultdict(set)
    for letter, ending in re.findall(r"\b([KGQS]):([a-z_]+)", page.read_text("utf-8")):
        found[OWNERS[letter]].add(ending)
    return found


@pytest.mark.parametrize("package", sorted(set(OWNERS.values())))
def test_the_table_of_keys_has_every_key_that_lua_makes_and_no_other(package: str) -> None:
    listed, ours, shared = told(KEYS)[package], made(package), made("store")
    assert ours, f"no key is found in src/headwater/{package}/lua: how are they spelled now?"
    missing = ours - listed
    assert not missing, f"docs/reference/keys.md: add {sorted(missing)} of {package}"
    gone = listed - ours - shared
    assert not gone, f"docs/reference/keys.md: no Lua file makes {sorted(gone)} of {package}"


def test_architecture_names_no_key_that_is_not_in_the_table_of_keys() -> None:
    listed = told(KEYS)
    for package, endings in told(ARCHITECTURE).items():
        gone = endings - listed[package]
        assert not gone, (
            f"ARCHITECTURE.md names keys of {package} that do not exist: {sorted(gone)}"
        )


def test_the_table_of_keys_has_every_beginning_of_a_key() -> None:
    begins = re.compile(r"\bhw:(?:[a-z]+:)?\{(?:[a-z]+\})?")
    code = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.lua")]
    used = {found for file in code for found in begins.findall(file.read_text())}
    listed = KEYS.read_text("utf-8")
    missing = [found for found in used if found not in listed]
    assert not missing, f"docs/reference/keys.md: no key begins with {missing}"


# ── Decisions ────────────────────────────────────────────────────────────────────────────────


def test_decisions_are_numbered_without_gaps_and_titled_by_their_number() -> None:
    found = sorted(DECISIONS.glob("0*.md"))
    assert [page.name[:4] for page in found] == [f"{n:04}" for n in range(1, len(found) + 1)]
    for page in found:
        title = page.read_text("utf-8").partition("\n")[0]
        assert title.startswith(f"# {page.name[:4]}: "), f"{name_of(page)}: {title}"


def test_the_decision_on_operations_lists_all_that_one_may_ask_for() -> None:
    requests = {kind.__name__ for kind in get_args(eval(str(call.Request), vars(call)))}
    page = DECISIONS / "0004-operations-without-io.md"
    listed = set(re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), flags=re.MULTILINE))
    assert listed == requests, f"{name_of(page)}: a row for each request of store/call.py"
