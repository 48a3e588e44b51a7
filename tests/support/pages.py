"""The project's own pages as programs: their blocks of code, run in order, with what they show.

A block of Python is typed line by line, as into a prompt, in the namespace of its page. A comment
``# -> text`` after a statement shows what its value must look like. A ``console`` block holds
commands, each after ``$``, and what they print. ``...`` stands for anything, and white space does
not count. A block that cannot run is preceded by ``<!-- not run: reason -->``. A block of Python
with a title is a file of that name, for the commands that follow.

A page with tabs is one program for each of them: the blocks in tabs of that name, and those outside
of tabs. That of "Async" is typed into ``python -m asyncio``, where ``await`` needs no function.

This module needs nothing but the package, so that pages also run where only that is installed.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import types
import unittest
from codeop import CommandCompiler
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import redis

import headwater
from headwater.timeline import AsyncFarm, Farm

ROOT = Path(__file__).parents[2]
# In a tab of the site, a block is indented.
_FENCE = re.compile(r'^(    )?```(\w*)(?: title="([\w.]+)")?')
_TAB = re.compile(r'^=== "(\w+)"$')
_NOT_RUN = re.compile(r"^<!-- not run: .+ -->$")
_SHOWN = re.compile(r"# -> (.+)$")
# What a loop of asyncio in debug mode logs on a busy machine, as that of unittest is.
_BUSY = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

# Runs a command with an environment.
RunCommand: TypeAlias = Callable[[str, dict[str, str]], "subprocess.CompletedProcess[str]"]


class Block(NamedTuple):
    """A block of code: its language, its text, the line where that begins, its tab or nothing.

    ``file`` is the name of the file that it is, if it is one.
    """

    language: str
    text: str
    line: int
    tab: str
    file: str


def pages() -> list[Path]:
    """Name every page, of the repository and of the site."""
    return [
        ROOT / "README.md",
        *sorted(ROOT.glob("src/headwater/*/README.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page that are meant to run."""
    before, inside, language, begin, tab, file = "", False, "", 0, "", ""
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside, language, begin, file = True, fence[2], number + 1, fence[3] or ""
        elif fence:
            inside = False
            if language in ("python", "console") and not _NOT_RUN.match(before):
                text = "\n".join(lines[begin - 1 : number - 1])
                yield Block(language, textwrap.dedent(text), begin, tab if fence[1] else "", file)
            before = ""
        elif not inside and line.strip():
            before = line.strip()
            tab = found[1] if (found := _TAB.match(line)) else tab


def forms(page: Path) -> list[str]:
    """Return the tabs by which a page can be read; a page without tabs is sync."""
    return ["Sync", *sorted({block.tab for block in blocks(page)} - {"", "Sync"})]


def run_in_shell(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of a page as its reader does."""
    return subprocess.run(
        command,
        shell=True,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run_page(page: Path, form: str = "Sync", run: RunCommand = run_in_shell) -> None:
    """Run one form of a page in the current directory; fails where it does not do what it says."""
    namespace: dict[str, Any] = {"__name__": "__main__", "_shown": _shown}
    with asyncio.Runner() as runner:
        prompt = None if form == "Sync" else runner
        try:
            for block in blocks(page):
                where = f"{page.relative_to(ROOT)}:{block.line}"
                if block.tab not in ("", form):
                    continue
                if block.file:
                    Path(block.file).write_text(block.text + "\n", "utf-8")
                elif block.language == "python":
                    _run_python(block, where, namespace, prompt)
                else:
                    _run_console(block, where, run)
        finally:
            for found in namespace.values():
                _close(found, runner)


def _close(found: object, runner: asyncio.Runner) -> None:
    """Close what a page leaves open, as the end of its program would."""
    if isinstance(found, headwater.Headwater | Farm | redis.Redis | sqlite3.Connection):
        found.close()
    elif isinstance(found, headwater.aio.AsyncHeadwater | AsyncFarm):
        runner.run(found.close())


def _run_python(
    block: Block, where: str, namespace: dict[str, Any], prompt: asyncio.Runner | None
) -> None:
    for statement, line in _typed(block, where, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if prompt else 0):
        if not ast.parse(statement).body:
            continue  # an empty line, or a comment
        tree = _Showing(statement).visit(ast.parse(statement, where, "single"))
        ast.increment_lineno(ast.fix_missing_locations(tree), line - 1)
        if prompt is None:
            exec(compile(tree, where, "single"), namespace)
        else:
            prompt.run(_awaited(tree, where, namespace))


async def _awaited(tree: ast.AST, where: str, namespace: dict[str, Any]) -> None:
    """Run a statement as the prompt of asyncio does: inside its loop, and to its end."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code: types.CodeType = compile(tree, where, "single", flags)  # type: ignore[call-overload]
    answer = types.FunctionType(code, namespace)()
    if isinstance(answer, types.CoroutineType):
        await answer


def _typed(block: Block, where: str, flags: int) -> Iterator[tuple[str, int]]:
    """Return the statements of a block as a Python prompt takes them, with their first lines.

    A prompt compiles what is typed line by line: an empty line ends a function or a loop, and a
    line that is not indented cannot follow one without it.
    """
    compile_typed = CommandCompiler()
    compile_typed.compiler.flags |= flags
    typed: list[str] = []
    for number, line in enumerate([*block.text.split("\n"), ""]):
        typed.append(line)
        if compile_typed("\n".join(typed), where, "single") is not None:
            yield "\n".join(typed), block.line + number + 1 - len(typed)
            typed = []
    assert not "".join(typed).strip(), f"{where}: a prompt waits for more after {typed}"


class _Showing(ast.NodeTransformer):
    """Hands the value of each statement that shows one to ``_shown``."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return self._check(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._check(node)

    def _check(self, node: ast.Expr | ast.Assign) -> ast.AST:
        shown = _SHOWN.search(self._lines[(node.end_lineno or 0) - 1])
        if shown:
            name = ast.Name("_shown", ast.Load())
            node.value = ast.Call(name, [node.value, ast.Constant(shown[1])], [])
        return node


def _shown(value: object, wanted: str) -> object:
    _compare(wanted, repr(value))
    return value


def _compare(wanted: str, found: str) -> None:
    same = doctest.OutputChecker().check_output(wanted.strip() + "\n", found.strip() + "\n", _LOOSE)
    assert same, f"the page shows\n{wanted}\nbut it is\n{found}"


def _run_console(block: Block, where: str, run: RunCommand) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for command, wanted in _commands(block.text):
        program = command.split()[0]
        if program == "redis-cli" and shutil.which(program, path=path) is None:
            raise unittest.SkipTest("no redis-cli on the PATH")
        done = run(command, os.environ | {"PATH": path, "COLUMNS": "200"})
        assert done.returncode == 0, f"{where}: {command}\n{done.stdout}"
        if wanted:
            _compare(wanted, _BUSY.sub("", done.stdout))


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Return each command of a console block with what it is said to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, wanted = part, ""
        while command.partition("\n")[0].endswith("\\"):
            head, _, rest = command.partition("\\\n")
            command = head + rest
        command, _, wanted = command.partition("\n")
        yield command, wanted
