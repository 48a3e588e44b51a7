"""The contracts of server functions, read from the headers of the Lua files.

``make contracts`` writes what depends on them: the blocks of docs/reference/functions.md, and the
names in docs/how-to/other-languages.md. A contract is free to change until its release is out. So
store/contracts.json holds the digests of the contracts that are released: when the version of the
package is raised, which is right after a release, ``make contracts`` records them as they are then.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import textwrap
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import headwater
from headwater.store.library import FORMAT, VERSION

PACKAGE = Path(headwater.__file__).parent
RECORD = PACKAGE / "store" / "contracts.json"
PAGE = PACKAGE.parents[1] / "docs" / "reference" / "functions.md"
EXAMPLES = PACKAGE.parents[1] / "docs" / "how-to" / "other-languages.md"

FILES = sorted(PACKAGE.glob("*/lua/**/*.lua"))
COMMENT = re.compile(r"--\[\[(.*?)\]\]", re.DOTALL)
REGISTERED = re.compile(r"register_function(?:\('|\{\s*function_name = ')(hw_\w+)'")
SECTION = re.compile(r"^(KEYS|ARGV|Reply)\s+(.*(?:\n(?!\w+  |\n).*)*)", re.MULTILINE)
# An entry of the page: its heading and the block below it.
ENTRY = re.compile(r"### (`hw_.*)\n\n```text\n(?:.*\n)*?```\n")
# A name as the server knows it.
VERSIONED = re.compile(r"\bhw\d+_(\w+)")

RAISE = """\
What functions of {packages} take or reply has changed since version {version}, which is released.
Raise VERSION in src/headwater/store/library.py and run `make contracts`. If only words have
changed, and every old client is still right, run `make contracts WORDING=1`."""


class Function(NamedTuple):
    """A server function: its file, its code from the registration on, its header."""

    name: str
    file: Path
    code: str
    header: str

    @property
    def package(self) -> str:
        """The data type that it belongs to."""
        return self.file.relative_to(PACKAGE).parts[0]

    @property
    def reads_only(self) -> bool:
        """Whether it may be called by FCALL_RO."""
        return "'no-writes'" in self.code.partition("register_function")[0]

    def section(self, title: str) -> str:
        """Return the text of KEYS, ARGV or Reply on one line; '' without one."""
        return " ".join(dict(SECTION.findall(self.header)).get(title, "").split())

    def terms(self) -> str:
        """Return all that a client depends on."""
        said = [f"{title} {self.section(title)}" for title in ("KEYS", "ARGV", "Reply")]
        return "\n".join([self.name, *said, "read only" if self.reads_only else "writes"])


@cache
def functions() -> dict[str, Function]:
    """Return all functions by name."""
    found = [
        Function(name, file, source[source.index(f"'{name}'") :], _header_of(name, source))
        for file in FILES
        for source in [file.read_text("utf-8")]
        for name in REGISTERED.findall(source)
    ]
    return {function.name: function for function in found}


def _header_of(name: str, source: str) -> str:
    """Find the comment that introduces a function: it names it before its first colon."""
    found = [
        text
        for text in COMMENT.findall(source)
        if re.search(rf"\b{name}\b", text.partition(":")[0])
    ]
    assert len(found) == 1, f"{name} has {len(found)} headers"
    return textwrap.dedent(found[0]).strip()


def entry_of(names: list[str]) -> str:
    """Return the entry of functions that share a header, as the page has to show it."""
    first = functions()[names[0]]
    heading = ", ".join(f"`{name}`" for name in names) + (" *ro*" if first.reads_only else "")
    return f"### {heading}\n\n```text\n{first.header}\n```\n"


def entries() -> dict[str, str]:
    """Return the entries that the page has to show, by the name of the first function."""
    shared = groupby(functions().values(), key=lambda function: (function.file, function.header))
    groups = [[function.name for function in group] for _, group in shared]
    return {names[0]: entry_of(names) for names in groups}


def shown() -> dict[str, str]:
    """Return the entries that the page shows, by the name of the first function."""
    text = PAGE.read_text("utf-8")
    return {re.findall(r"hw_\w+", found[0])[0]: found[0] for found in ENTRY.finditer(text)}


def digests() -> dict[str, str]:
    """Return a digest of the contracts of each package."""
    terms: dict[str, list[str]] = {}
    for name in sorted(functions()):
        terms.setdefault(functions()[name].package, []).append(functions()[name].terms())
    return {
        package: hashlib.sha256("\n\n".join(said).encode()).hexdigest()[:16]
        for package, said in sorted(terms.items())
    }


class Record(NamedTuple):
    """The contracts of the last release: their version, their format, a digest for each package.

    ``development`` is the release that was begun then. Version 0: nothing is released yet.
    """

    development: str
    version: int
    format: int
    digests: dict[str, str]


def recorded() -> Record:
    """Return what store/contracts.json holds."""
    return Record(**json.loads(RECORD.read_text("utf-8")))


def changed() -> list[str]:
    """Return the packages whose contracts are not those that are released under this version."""
    known, now = recorded(), digests()
    if known.version < VERSION:
        return []
    names = known.digests.keys() | now
    return sorted(name for name in names if known.digests.get(name) != now.get(name))


def _record() -> None:
    facts = Record(headwater.__version__, VERSION, FORMAT, digests())._asdict()
    RECORD.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


def main(wording: bool) -> int:
    """Write the pages and the record; refuse another contract under a version that is released."""
    wanted = entries()
    text = PAGE.read_text("utf-8")
    text = ENTRY.sub(lambda found: wanted.get(re.findall(r"hw_\w+", found[1])[0], ""), text)
    PAGE.write_text(text, "utf-8")
    if missing := sorted(wanted.keys() - shown().keys()):
        print(f"put these into the fitting section of {PAGE.name}:\n\n")
        print("\n".join(wanted[name] for name in missing))
        return 1
    text = EXAMPLES.read_text("utf-8")
    EXAMPLES.write_text(VERSIONED.sub(rf"hw{VERSION}_\1", text), "utf-8")
    released = recorded().development != headwater.__version__
    if changed() and not (released or wording):
        print(RAISE.format(packages=", ".join(changed()), version=VERSION))
        return 1
    if changed() or released:
        _record()
    return 0


if __name__ == "__main__":
    sys.exit(main("--wording" in sys.argv))
