"""The rules of CONTRIBUTING.md that a program can check and that ruff does not know."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import aio, errors, outbox

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "bench", "examples")
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


def test_a_twin_is_generated_or_says_why_it_is_written_twice() -> None:
    """That a generated one is what its source makes is for ``make check``."""
    for source in (file for file in files(".py") if file.name.startswith("aio_")):
        twin = source.with_name(source.name.removeprefix("aio_"))
        if not twin.exists() or twin.read_text("utf-8").startswith("# Generated from"):
            continue
        for file in (source, twin):
            said = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
            assert "Written twice because" in said, name_of(file)


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


# ── The sentences of the README and of the written pages can be read at once ─────────────────────


PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *(
        page
        for folder in ("tutorial", "how-to", "discussion")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]
MOST_WORDS = 35

_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
# A heading, a row of a table, a tab and an item of a list begin a text of their own.
_BREAK = re.compile(r"^ *(?:[#|].*|[=!?]{3}.*|(?:[-*]|\d+\.) )", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])|(?<=:)\s*$")


def sentences(markdown: str) -> Iterator[str]:
    """Return the sentences of a page, without its code blocks, tables and link targets."""
    text = _COMMENT.sub("", _FENCED.sub("\n\n", markdown))
    # Code within a sentence is one word, whatever it contains.
    text = _LINK.sub(r"\1", _CODE.sub("Code", text))
    for paragraph in re.split(r"\n\s*\n", _BREAK.sub("\n\n", text)):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            if sentence:
                yield sentence


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_longer_than_a_reader_can_keep_in_mind(page: Path) -> None:
    long = [
        f"{page.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}"
        for sentence in sentences(page.read_text("utf-8"))
        if len(sentence.split()) > MOST_WORDS
    ]
    assert not long, "split these sentences, or make them a list:\n" + "\n".join(long)


def test_a_sentence_ends_where_its_reader_sees_an_end() -> None:
    page = "# Title\nOne `a.b c`. Two [three](four five.md)\nsix?\n\n| a |\n\n- seven\n- eight\n"
    page += "```python\nnine = 9\n```\n"
    assert list(sentences(page)) == ["One Code.", "Two three six?", "seven", "eight"]


# What is imported before somebody at a prompt sees the first answer: a budget, held by counting.
# Importing is nearly all of the time of a command. A library that is named here takes longer to
# import than a command needs to run; the numbers bound what is ours.

# Runs a program, then writes the name of each module that it has imported to a file.
NOTING = """
import sys
place, *words = sys.argv[1:]
sys.argv = ["headwater", *words]
try:
    {program}
finally:
    names = [name for name, module in list(sys.modules.items()) if module is not None]
    open(place, "w").write("\\n".join(names))
"""
COMMAND = "from headwater.__main__ import main; main()"
# Libraries that are imported when they are needed, and not before.
LARGE = {
    *("asyncio", "msgspec", "pyarrow", "redis", "rich", "markdown_it", "pydantic"),
    *("sqlalchemy", "pyspark", "jinja2", "httptools", "opentelemetry", "uvloop"),
}
# The help is made by Typer with Rich; its releases differ in what they check types with.
HELP = {"rich", "markdown_it", "pydantic"}
# redis-py brings asyncio, and OpenTelemetry where that is installed.
STORE = {"asyncio", "msgspec", "redis", "opentelemetry", "pydantic"}


def imported(program: str, *words: str, cwd: Path) -> set[str]:
    """Return all modules that a program has imported when it ends, which must be with code 0."""
    place = cwd / "imported.txt"
    done = subprocess.run(
        [sys.executable, "-c", NOTING.format(program=program), place, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(place.read_text().split())


def large(modules: set[str]) -> set[str]:
    return LARGE & {name.partition(".")[0] for name in modules}


def ours(modules: set[str]) -> list[str]:
    return sorted(name for name in modules if name.startswith("headwater."))


@pytest.mark.parametrize(
    ("words", "most"),
    [
        (("--help",), 46),
        (("--version",), 20),
        (("stream", "--help"), 46),
        (("queue", "stats", "--help"), 46),
        (("serve", "--help"), 30),
    ],
)
def test_help_imports_no_client_and_few_modules(
    words: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    found = imported(COMMAND, *words, cwd=tmp_path)
    assert large(found) <= HELP
    assert len(ours(found)) <= most, ours(found)


def test_the_help_of_the_program_imports_no_group_of_commands(tmp_path: Path) -> None:
    found = imported(COMMAND, "--help", cwd=tmp_path)
    groups = ("stream", "queue", "spark")
    assert not found & {f"headwater.cli.groups.{group}" for group in groups}


def test_a_command_imports_what_it_needs(tmp_path: Path) -> None:
    """On an embedded store, which the first of them makes."""
    budgets = [
        (("queue", "push", "jobs", "one"), STORE, 90),
        (("queue", "stats", "jobs", "--json"), STORE, 90),
        (("ick", "add", "dirty", "ada", "1"), STORE, 72),
        (("stream", "write", "rides", "ride-1", "requested"), STORE | {"pyarrow"}, 120),
        (("stream", "read", "rides", "--json"), STORE | {"pyarrow"}, 120),
        (("stream", "info", "rides", "--json"), STORE | {"pyarrow"}, 120),
    ]
    for words, allowed, most in budgets:
        found = imported(COMMAND, *words, cwd=tmp_path)
        assert large(found) <= allowed, words
        assert len(ours(found)) <= most, (words, ours(found))
        groups = {name.split(".")[2] for name in ours(found) if name.startswith("headwater.cli.")}
        assert not groups & ({"stream", "queue", "ick", "spark", "topic"} - {words[0]}), words


@pytest.mark.parametrize(
    ("program", "allowed", "most"),
    [
        ("import headwater", set(), 5),
        ("import headwater; headwater.connect().queue('jobs').push(b'1')", STORE, 64),
        ("import headwater; headwater.connect().stream('a').write('a', b'1')", None, 84),
    ],
)
def test_a_program_imports_what_it_uses(
    program: str, allowed: set[str] | None, most: int, tmp_path: Path
) -> None:
    found = imported(program, cwd=tmp_path)
    assert large(found) <= (STORE | {"pyarrow"} if allowed is None else allowed)
    assert len(ours(found)) <= most, ours(found)


# ── The base install: what works without the extras, and what names the extra that is missing ────

# Runs a program as if the named modules were not installed.
WITHOUT = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
{program}
"""
CLI = "from headwater.cli.main import app; sys.argv[0] = 'headwater'; app()"
EXTRAS = (
    "sqlalchemy",
    "psycopg",
    "greenlet",
    "httptools",
    "uvloop",
    "jinja2",
    "markupsafe",
    "pyspark",
)


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    source = WITHOUT.format(missing=EXTRAS, program=program)
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=cwd,
    )


def test_log_queue_dirty_list_and_timeline_need_no_extra(tmp_path: Path) -> None:
    program = """
import headwater, headwater.aio, headwater.outbox, headwater.timeline, headwater.spark
from headwater.serve import asgi_app
with headwater.connect() as hw:
    hw.stream("rides").write("ride-1", b"requested")
    hw.queue("jobs").push(b"one")
    hw.ick("dirty").add({"ada": 1.0})
    print(len(hw.stream("rides").read(1, 10)), hw.queue("jobs").stats().ready)
"""
    said = run(program, cwd=tmp_path)
    assert (said.stdout, said.returncode) == ("1 1\n", 0), said.stderr


@pytest.mark.parametrize(
    "arguments", [("--help",), ("stream", "list"), ("doctor",), ("top", "--once")]
)
def test_the_command_line_needs_no_extra(arguments: tuple[str, ...], tmp_path: Path) -> None:
    said = run(CLI, *arguments, cwd=tmp_path)
    assert said.returncode == 0, said.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("outbox", "status", "--db", "sqlite:///app.db"), "sql"),
        (("timeline", "serve", "--instances", "127.0.0.1:1"), "serve"),
        (("serve",), "serve"),
        (("console", "--no-open"), "serve"),
        (("keep", "--metrics", "127.0.0.1:0"), "serve"),
        (("consumer", "list", "--db", "sqlite:///app.db"), "sql"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    arguments: tuple[str, ...], extra: str, tmp_path: Path
) -> None:
    said = run(CLI, *arguments, cwd=tmp_path)
    assert said.returncode == 1, said.stdout
    assert f"pip install 'headwater[{extra}]'" in " ".join(said.stderr.split())
    assert "Traceback" not in said.stderr


def test_a_class_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    said = run("from headwater.outbox import Outbox", cwd=tmp_path)
    assert said.stderr.splitlines()[-1] == (
        "headwater.errors.ExtraMissing: sqlalchemy is not installed; "
        "run pip install 'headwater[sql]'"
    )


def test_importing_the_outbox_brings_in_no_database(tmp_path: Path) -> None:
    look = "import headwater.outbox; print(*{'sqlalchemy', 'psycopg', 'redis'} & set(sys.modules))"
    assert run(look, cwd=tmp_path).stdout.strip() == ""


# ── The public names are what they say they are, the same for both clients, and stay ─────────────


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_all_is_what_there_is() -> None:
    assert len(set(headwater.__all__)) == len(headwater.__all__)
    assert sorted(headwater.__all__) == headwater.__all__
    ours = {
        name
        for name in public(headwater)
        if getattr(getattr(headwater, name), "__module__", "").startswith("headwater.")
    }
    assert ours | {"__version__", "aio", "instrument", "tracing"} == set(headwater.__all__)


def test_a_star_import_gives_all_of_it() -> None:
    found: dict[str, Any] = {}
    exec("from headwater import *", found)
    assert set(headwater.__all__) <= set(found)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(headwater, "nothing")  # noqa: B009


def test_every_error_is_public_and_in_one_tree() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert {c.__name__ for c in classes} <= set(headwater.__all__)
    assert all(issubclass(c, headwater.HeadwaterError) for c in classes)
    drawn = errors.__doc__ or ""
    assert all(f" {c.__name__} " in f" {drawn} ".replace("\n", " ") for c in classes)


def test_a_worker_can_still_be_imported_from_the_outbox() -> None:
    assert outbox.Worker is headwater.Worker
    assert outbox.AsyncWorker is aio.AsyncWorker


def test_every_public_method_says_what_it_does() -> None:
    for module in (headwater, aio):
        for kind in (getattr(module, name) for name in module.__all__):
            for name in public(kind) if inspect.isclass(kind) else ():
                member = getattr(kind, name)
                assert not inspect.isroutine(member) or member.__doc__, f"{kind.__name__}.{name}"


def test_importing_headwater_starts_nothing_and_brings_in_no_client() -> None:
    look = "import sys, headwater; print(*{'redis', 'pyarrow'} & set(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == ""
