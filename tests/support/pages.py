"""The project's own pages as programs: their blocks of code, run in order, with what they show.

A block of Python is typed line by line, as into a prompt, in the namespace of its page. A comment
``# -> text`` after a statement shows what its value must look like. A ``console`` block holds
commands, each after ``$``, and what they print. ``...`` stands for anything, and white space does
not count. A block that cannot run is preceded by ``<!-- not run: reason -->``.

This module needs nothing but the package, so that pages also run where only that is installed.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import shutil
import subprocess
import sys
import textwrap
import unittest
from codeop import CommandCompiler
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import redis

import headwater

ROOT = Path(__file__).parents[2]
# In a tab of the site, a block is indented.
_FENCE = re.compile(r"^(    )?```(\w*)")
_NOT_RUN = re.compile(r"^<!-- not run: .+ -->$")
_SHOWN = re.compile(r"# -> (.+)$")
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A block of code: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """Name every page, of the repository and of the site."""
    return [
        ROOT / "README.md",
        *sorted(ROOT.glob("src/headwater/*/README.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page that are meant to run."""
    before, inside, language, begin = "", False, "", 0
    lines = page.read_text("utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside, language, begin = True, fence[2], number + 1
        elif fence:
            inside = False
            if language in ("python", "console") and not _NOT_RUN.match(before):
                text = "\n".join(lines[begin - 1 : number - 1])
                yield Block(language, textwrap.dedent(text), begin)
            before = ""
        elif not inside and line.strip():
            before = line.strip()


def run_page(page: Path) -> None:
    """Run a page in the current directory; fails where it does not do what it says."""
    namespace: dict[str, Any] = {"__name__": "__main__", "_shown": _shown}
    try:
        for block in blocks(page):
            where = f"{page.relative_to(ROOT)}:{block.line}"
            if block.language == "python":
                _run_python(block, where, namespace)
            else:
                _run_console(block, where)
    finally:
        for found in namespace.values():
            if isinstance(found, headwater.Headwater | redis.Redis):
                found.close()


def _run_python(block: Block, where: str, namespace: dict[str, Any]) -> None:
    for statement, line in _typed(block, where):
        if not ast.parse(statement).body:
            continue  # an empty line, or a comment
        tree = _Showing(statement).visit(ast.parse(statement, where, "single"))
        ast.increment_lineno(ast.fix_missing_locations(tree), line - 1)
        exec(compile(tree, where, "single"), namespace)


def _typed(block: Block, where: str) -> Iterator[tuple[str, int]]:
    """Return the statements of a block as a Python prompt takes them, with their first lines.

    A prompt compiles what is typed line by line: an empty line ends a function or a loop, and a
    line that is not indented cannot follow one without it.
    """
    compile_typed = CommandCompiler()
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


def _run_console(block: Block, where: str) -> None:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for command, wanted in _commands(block.text):
        program = command.split()[0]
        if program == "redis-cli" and shutil.which(program, path=path) is None:
            raise unittest.SkipTest("no redis-cli on the PATH")
        done = subprocess.run(
            command,
            shell=True,
            env=os.environ | {"PATH": path, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{where}: {command}\n{done.stdout}"
        if wanted:
            _compare(wanted, done.stdout)


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Return each command of a console block with what it is said to print."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, wanted = part, ""
        while command.partition("\n")[0].endswith("\\"):
            head, _, rest = command.partition("\\\n")
            command = head + rest
        command, _, wanted = command.partition("\n")
        yield command, wanted
