"""Writes the blocking twins of async modules: ``x.py`` from ``aio_x.py`` beside it.

A module is generated when its first line says so; every other one is left alone. To begin a twin,
write ``aio_x.py`` and a file ``x.py`` with the line alone, and run ``make derived``. ``make check``
fails when a twin differs from what its source makes.

Names, docstrings and comments are translated alike: ``AsyncGroup`` is Group, ``aio_group`` is
group, ``await`` and ``async`` go. What differs for a reason is written as both, and mypy checks
each side in its own module:

    ASYNC: Final = True  # the twin has what is under else

    if ASYNC:
        ...
    else:
        ...

Where only the twin does something, ``if not ASYNC`` is enough.

A module that says ``ON_A_THREAD: Final = True`` has calls that only tasks can make: the class in
its twin runs each public async method of the other one on the thread of its base, ThreadedFarm.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_LINE = "# Generated from {source} by `make derived`, which renews it: change that file."

# In code and in text alike, in this order.
WORDS = {
    r"\basync (?=def\b|for\b|with\b)": "",
    # Of a program in a docstring: prose may await, too.
    r"(?m)(^ *|= )await (?=[\w.]+\()": r"\1",
    r"\bAsync(?=[A-Z])": "",
    r"\baio_(?=[a-z])": "",
    r"\b__a(enter|exit|iter|next)__": r"__\1__",
    r"\bStopAsyncIteration\b": "StopIteration",
    r"\ba(close|next)\b": r"\1",
    r"\bAwaitable\[([\w.]+)\]": r"\1",
    r"\bfor asyncio\b": "for blocking code",
    r"\bin tasks\b": "in threads",
    r"\bin this task\b": "in this thread",
    # What is not used is removed afterwards.
    r"(?m)^import asyncio$": "import asyncio\nimport threading\nimport time",
    r"\basyncio\.sleep\b": "time.sleep",
    r"\basyncio\.to_thread\(([\w.]+)(, )?": r"\1(",
    r"\bredis\.asyncio\b": "redis",
    r"\bnowait=True\b": "",
    r"\basyncio\.Lock\b": "threading.Lock",
}


def twins() -> Iterator[tuple[Path, Path]]:
    """Yield each generated module after its source."""
    for twin in sorted((ROOT / "src").rglob("*.py")):
        if twin.read_text("utf-8").startswith(FIRST_LINE.partition("{")[0]):
            yield twin.with_name(f"aio_{twin.name}"), twin


def first_line(source: Path) -> str:
    """Return what the twin of a module begins with."""
    return FIRST_LINE.format(source=source.name)


def generated(source: Path, twin: Path) -> str:
    """Return what the twin of a module has to be; raises SyntaxError when that is no Python."""
    text = source.read_text("utf-8")
    if "\nON_A_THREAD: Final = True" in text:
        text = on_a_thread(text)
    text = without_awaits(without_async_branches(text))
    for pattern, replacement in WORDS.items():
        text = re.sub(pattern, replacement, text)
    compile(text, twin, "exec")
    text = f"{first_line(source)}\n{text}"
    # Imports change their order, and blocking code has ``yield from``.
    fix = ("check", "--quiet", "--fix-only", "--unsafe-fixes", "--select", "I,F401,UP028")
    return ruffed(ruffed(text, twin, *fix), twin, "format", "--quiet")


def without_async_branches(text: str) -> str:
    """Return a module with the blocking side of each ``if ASYNC: ... else: ...``.

    Of ``if not ASYNC: ...`` that is all.
    """
    lines = text.splitlines(keepends=True)
    for node in reversed(list(ast.walk(ast.parse(text)))):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "ASYNC":
            lines[node.lineno - 1] = ""
        elif isinstance(node, ast.If) and ast.unparse(node.test) in {"ASYNC", "not ASYNC"}:
            start, end = node.lineno, node.end_lineno or 0
            if isinstance(node.test, ast.Name):
                body_end = node.body[-1].end_lineno or 0
                rest = (n + 1 for n in range(body_end, end) if lines[n].strip() == "else:")
                start = next(rest, end)
            for at in range(node.lineno - 1, end):
                lines[at] = lines[at].removeprefix("    ") if at >= start else ""
    return "".join(lines)


def on_a_thread(text: str) -> str:
    """Return a module whose class has the verbs of another one, each run on a thread."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    (cls,) = [one for one in tree.body if isinstance(one, ast.ClassDef) and "Async" in one.name]
    name = cls.name.removeprefix("Async")
    parts = [f'"""{name}: the farm for blocking code, whose verbs run on a thread of its own."""\n']
    imports = [one for one in tree.body if isinstance(one, ast.Import | ast.ImportFrom | ast.If)]
    for node in sorted(imports, key=lambda one: isinstance(one, ast.If)):
        parts += lines[node.lineno - 1 : node.end_lineno]
        if node is imports[0]:
            parts.append("from headwater.timeline.farm.threaded_farm import ThreadedFarm\n")
    parts.append(f"class {cls.name}(ThreadedFarm):\n")
    parts += lines[cls.body[0].lineno - 1 : cls.body[0].end_lineno]
    for verb in cls.body:
        if isinstance(verb, ast.AsyncFunctionDef) and not verb.name.startswith("_"):
            given = [one.arg for one in verb.args.args[1:]]
            given += [f"{one.arg}={one.arg}" for one in verb.args.kwonlyargs]
            returns = "" if ast.unparse(verb.returns or verb) == "None" else "return "
            call = f"self._run(self._farm.{verb.name}({', '.join(given)}))"
            parts += ["\n", *lines[verb.lineno - 1 : verb.body[0].end_lineno]]
            parts.append(f"        {returns}{call}\n")
    return "".join(parts)


def without_awaits(text: str) -> str:
    """Return a module that awaits nothing, without the parentheses that only ``await`` needs."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    awaits = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Await)]
    # From the last to the first: what is removed moves only what comes after it.
    for node in sorted(awaits, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        first, last, start, end = *rows(node), node.col_offset, node.end_col_offset or 0
        if re.search(rb"(^|[^\w)\]])\($", lines[first][:start]) and lines[last][end:][:1] == b")":
            lines[last] = lines[last][:end] + lines[last][end + 1 :]
            lines[first] = lines[first][: start - 1] + lines[first][start:]
            start -= 1
        lines[first] = lines[first][:start] + lines[first][start:].removeprefix(b"await ")
    return b"".join(lines).decode()


def rows(node: ast.expr) -> tuple[int, int]:
    """Return in which lines an expression begins and ends, from 0."""
    return node.lineno - 1, (node.end_lineno or 0) - 1


def ruffed(text: str, file: Path, *command: str) -> str:
    """Return what ruff makes of the text of a file."""
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(file), "-"]
    return subprocess.run(ruff, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout


def main() -> int:
    """Write each twin that differs, or with --check only name it; returns the exit code."""
    check, differing = sys.argv[1:] == ["--check"], []
    for source, twin in twins():
        text = generated(source, twin)
        if text != twin.read_text("utf-8"):
            differing.append(twin.relative_to(ROOT).as_posix())
            if not check:
                twin.write_text(text, "utf-8")
    if differing:
        print("not what its source makes; run `make derived`:" if check else "written:", *differing)
    return int(check and bool(differing))


if __name__ == "__main__":
    sys.exit(main())
