"""Writes what the reference pages say of HTTP routes, RESP commands and derived commands.

``make derived`` renews it; tests hold the pages to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from headwater.cli.declared import DECLARED
from headwater.cli.derived import SHORT_OPTIONS, Declaration, Word
from headwater.doors.catalogue import KINDS, Kind
from headwater.kernel.declaring import Spelling
from headwater.serve.resp.commands import RespCommand
from headwater.serve.resp.table import COMMANDS
from tests.support import http_reference

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
HEAD = "| command | needs | |\n|---|---|---|\n"


_SCORE = Word("score", "--score", help="The score of all; without it this machine's time in s.")


def resp_page() -> str:
    """Return the page of RESP with the tables that its commands make, by their groups."""
    text = (REFERENCE / "resp.md").read_text("utf-8")
    for group in dict.fromkeys(command.group for command in COMMANDS.values()):
        own = [one for one in dict.fromkeys(COMMANDS.values()) if one.group == group]
        names = "|".join(re.escape(one.name) for one in own)
        table = re.compile(rf"{re.escape(HEAD)}\| `(?:{names})\b(?:\|.*\n|.*\n)*?(?=\n)")
        rows = HEAD + "\n".join(map(resp_row, own)) + "\n"
        text = table.sub(rows.replace("\\", r"\\"), text, count=1)
    return text


def resp_row(command: RespCommand) -> str:
    """Return the row of a command: how it is written, the scope it needs, what it does."""
    forms = " <br> ".join(
        f"`{command.name} {form}`".replace(" `", "`").replace("|", r"\|")
        for form in command.syntax.split(" | ")
    )
    scope = command.scope.name.lower() if command.scope else "nothing"
    return f"| {forms} | {scope} | {command.summary} |"


def cli_page() -> str:
    """Return the page of the command line with a section for each derived command."""
    text = (REFERENCE / "cli.md").read_text("utf-8")
    for kind in KINDS:
        for declaration in DECLARED.get(kind.name, ()):
            if declaration.by_hand:
                continue
            title = f"### headwater {kind.command} {declaration.name}\n"
            section = "\n".join([title, *cli_section(kind, declaration), "", ""])
            if title in text:
                before, _, rest = text.partition(title)
                after = re.search(r"^#{2,3} ", rest, re.MULTILINE)
                text = before + section + (rest[after.start() :] if after else "")
            else:
                chapter = text.index(f"## headwater {kind.command}\n")
                end = text.find("\n## ", chapter + 1) + 1 or len(text)
                text = text[:end] + section + text[end:]
    return text.rstrip("\n") + "\n"


def cli_section(kind: Kind, declaration: Declaration) -> Iterator[str]:
    """Yield the lines of a section: usage, what it does, its options."""
    words = [word for word in declaration.words if word.shape != Spelling.DOCUMENT.value]
    arguments = [word for word in words if word.variadic or _positional(word)]
    names = [*map(str.upper, kind.keys), *map(_spelled, arguments)]
    usage = f"headwater {kind.command} {declaration.name} {' '.join(names)}"
    yield f"`{usage}`: {declaration.help}"
    options = [word for word in words if word not in arguments]
    if any(word.shape == Spelling.SCORES.value for word in words):
        options = [_SCORE, *options]
    if options or declaration.asks or kind.database:
        yield ""
        yield "| option | |"
        yield "|---|---|"
    for word in options:
        needed = "; required" if word.required else ""
        plain = word.default is None or isinstance(word.default, bool)
        default = "" if plain else f"; default `{word.default}`"
        said = word.help[:1].lower() + word.help[1:].rstrip(".")
        names_of = "`, `".join([*word.option.split("/"), *SHORT_OPTIONS.get(word.called, ())])
        yield f"| `{names_of}` | {said}{needed}{default} |"
    if kind.database:
        yield "| `--db` | the database; required, from `$HEADWATER_DB` if not given |"
    if declaration.asks:
        yield "| `--yes`, `-y` | does not ask for confirmation |"


def _spelled(word: Word) -> str:
    """Return an argument as the usage of a command has it."""
    if word.shape == Spelling.SCORES.value:
        return "[MEMBER]..."
    name = word.metavar or word.called.upper().removesuffix("S" if word.called == "offsets" else "")
    name = name if word.required else f"[{name}]"
    return f"{name}..." if word.variadic else name


def _positional(word: Word) -> bool:
    return word.required and not word.keyword


def main() -> None:
    """Write the pages."""
    (REFERENCE / "resp.md").write_text(resp_page(), "utf-8")
    (REFERENCE / "cli.md").write_text(cli_page(), "utf-8")
    before = http_reference.PAGE.read_text("utf-8").partition(http_reference.MARK)[0]
    http_reference.PAGE.write_text(
        f"{before}{http_reference.MARK}\n\n{http_reference.generated()}", "utf-8"
    )


if __name__ == "__main__":
    main()
