"""Two releases of Headwater: the tree as wheel, and a made-up next one with another format.

The next release differs where releases do: its package has a higher version, hw_stream_write takes
one argument more, and from format 2 on it spells entries of the tail in another way, which the
release before cannot read. It understands both, and writes format 2 only where the store says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from headwater.store.library import VERSION

ROOT = Path(__file__).parents[2]
WORKER = ROOT / "tests" / "support" / "release_worker.py"
NEXT = "999.0.0"


class Release(NamedTuple):
    """An unpacked wheel, which other processes import instead of the tree."""

    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a Python program under this release."""
        return subprocess.Popen(
            [sys.executable, "-P", *words],
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a program to its end; returns its exit code and what it printed."""
        process = self.start(*words)
        out, err = process.communicate()
        return process.returncode, out, err

    def command(self, *words: str) -> tuple[int, str, str]:
        """Run a ``headwater`` command."""
        return self.run("-c", "from headwater.cli.main import app; app()", *words)

    def work(self, **facts: Any) -> tuple[int, str, str]:
        """Let a worker work; see release_worker.py."""
        return self.run(str(WORKER), json.dumps(facts))


def both_releases(folder: Path) -> tuple[Release, Release]:
    """Build the release of the tree and the next one; returns them in that order."""
    found = []
    for name in ("this", "next"):
        tree = folder / f"{name}-tree"
        copy_tree(tree)
        if name == "next":
            make_next(tree)
        found.append(_build(tree, folder / name))
    return found[0], found[1]


def copy_tree(tree: Path) -> None:
    """Copy what a wheel is built of."""
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, tree / file)


def _build(tree: Path, into: Path) -> Release:
    built = into.with_suffix(".wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(words, cwd=tree, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(into)
    return Release(into)


def make_next(tree: Path) -> None:
    """Turn a copy of the tree into the next release."""
    package = tree / "src" / "headwater"
    change(package, "packaging.py", r'__version__ = ".*"', f'__version__ = "{NEXT}"')
    change(package, "library.py", r"^VERSION = \d+", f"VERSION = {VERSION + 1}")
    change(package, "library.py", r"^FORMAT = 1", "FORMAT = 2")
    # The contract: one argument more.
    registered = r"(register_function\('hw_stream_write', function\(keys, args\)\n)"
    change(package, "*.lua", registered, r"\1  table.remove(args, 1)\n")
    sends = r"(    return \(verb, name_in_server\(call.function\))"
    more = (
        '    if call.function == "hw_stream_write":\n'
        '        call = call._replace(args=("new", *call.args))\n'
    )
    change(package, "library.py", sends, more + r"\1")
    # The format: another name for the tag of an entry.
    change(package, "*.lua", r"'k', args", "(WRITES < 2 and 'k' or 'tag'), args")
    either = "(entry_field(entry, 'k') or entry_field(entry, 'tag'))"
    change(package, "*.lua", r"entry_field\(entry, 'k'\)", either)
    change(package, "*.py", r'fields\[0\] == b"k"', 'fields[0] in (b"k", b"tag")')
    opened = r"(local function open_stream\(K, plain\)\n)"
    raised = r"\1  if WRITES > 1 then redis.call('HSET', K, 'format', WRITES) end\n"
    change(package, "*.lua", opened, raised)


def change(package: Path, files: str, pattern: str, replacement: str) -> None:
    """Change something wherever it is; it must be there."""
    total = 0
    for file in package.rglob(files):
        text, count = re.subn(pattern, replacement, file.read_text("utf-8"), flags=re.MULTILINE)
        if count:
            file.write_text(text, "utf-8")
            total += count
    assert total, f"{pattern!r} is nowhere in {files}: adapt what the next release changes"
