"""The rules of CONTRIBUTING.md that a program can check and that ruff does not know."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "bench", "examples")
# Sharing a connection is for asyncio only: a thread has one to itself.
WITHOUT_TWIN = {"src/headwater/store/aio_pipe.py"}
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


def files(*suffixes: str) -> Iterator[Path]:
    """Return every source file of the project with one of the suffixes."""
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in suffixes and "__pycache__" not in file.parts:
                yield file


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def classes() -> Iterator[tuple[str, str]]:
    """Return every public class of the library with the module that defines it."""
    for file in files(".py"):
        if name_of(file).startswith("src/"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    yield node.name, name_of(file)


def test_the_name_of_a_public_class_names_one_class() -> None:
    places = defaultdict(list)
    for name, module in classes():
        places[name].append(module)
    shared = {name: found for name, found in places.items() if len(found) > 1}
    assert not shared, f"rename all but one, or begin the name with an underscore: {shared}"


def test_an_async_twin_stands_beside_what_it_is_the_twin_of() -> None:
    alone = {
        name_of(file)
        for file in files(".py")
        if file.name.startswith("aio_")
        and not (file.parent / file.name.removeprefix("aio_")).exists()
    }
    assert alone == WITHOUT_TWIN, "twins are x.py and aio_x.py, in one folder"


def test_a_twin_is_generated_or_says_why_it_is_written_twice() -> None:
    """That a generated one is what its source makes is for ``make check``."""
    for source in (file for file in files(".py") if file.name.startswith("aio_")):
        twin = source.with_name(source.name.removeprefix("aio_"))
        if not twin.exists() or twin.read_text("utf-8").startswith("# Generated from"):
            continue
        for file in (source, twin):
            said = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
            assert "Written twice because" in said, name_of(file)


def test_no_module_marks_a_twin_in_another_way() -> None:
    other = re.compile(r"^(a?sync_\w+|\w+_(aio|a?sync))$")
    assert [
        name_of(file)
        for file in files(".py")
        if name_of(file).startswith("src/") and other.match(file.stem)
    ] == [], "twins are x.py and aio_x.py"


def test_a_module_is_named_by_what_it_holds() -> None:
    assert [
        name_of(file) for file in files(".py") if set(file.stem.split("_")) & EMPTY_WORDS
    ] == [], "a name that says nothing of the content: name what is in the module"


def test_no_merge_left_its_marks() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for file in (*files(".py", ".lua", ".java", ".json"), *pages):
        marks = re.findall(r"^ *(?:<{7} |={7}$|>{7} )", file.read_text("utf-8"), re.MULTILINE)
        assert not marks, f"{name_of(file)} has {marks}"


def test_no_test_sleeps() -> None:
    """Giving way to the event loop, ``asyncio.sleep(0)``, is no sleep."""
    asleep = re.compile(r"\b(?:time|asyncio|anyio)\.sleep\((?!0\))")
    assert [
        f"{name_of(file)}: {line.strip()}"
        for file in sorted((ROOT / "tests").glob("*/test_*.py"))
        for line in file.read_text("utf-8").splitlines()
        if asleep.search(line)
    ] == [], "wait for a signal, or for a condition by tests.support.servers.until"


def test_nothing_in_the_package_makes_code_of_data() -> None:
    for path in files(".py"):
        if path.is_relative_to(ROOT / "src"):
            text = path.read_text("utf-8")
            found = re.findall(
                r"^ *(?:import|from) (?:pickle|marshal|shelve|dill|cloudpickle)", text, re.M
            )
            found += re.findall(r"(?<![\w.])(?:eval|exec)\(", text)
            assert not found, f"{path.relative_to(ROOT)}: data must not become code: {found}"


def dependencies() -> set[str]:
    """Return the names of everything that pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [
        *project["project"]["dependencies"],
        *(d for extra in project["project"]["optional-dependencies"].values() for d in extra),
        *project["dependency-groups"]["dev"],
    ]
    return {re.split(r"[\[<>=;~! ]", line)[0].lower() for line in wanted} - {"headwater"}


def test_every_dependency_has_its_reason() -> None:
    page = (ROOT / "docs" / "decisions" / "0003-libraries.md").read_text("utf-8").lower()
    missing = {name for name in dependencies() if not re.search(rf"\b{name}\b", page)}
    assert not missing, f"write a line in docs/decisions/0003-libraries.md for {missing}"


def test_every_dependency_is_pinned() -> None:
    pins = re.findall(
        r"^([\w.-]+)(?:\[.*?\])?==", (ROOT / "requirements.txt").read_text(), re.MULTILINE
    )
    missing = dependencies() - {name.lower() for name in pins}
    assert not missing, f"run make lock: requirements.txt does not have {missing}"


def test_the_wheel_has_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(listed) == sorted(name_of(p.parent) for p in (ROOT / "src").glob("*/__init__.py"))
