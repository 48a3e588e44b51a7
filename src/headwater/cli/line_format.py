"""``--format``: how a message is printed as one line of a user's own form.

Fields stand in braces: ``--format '{offset} {tag} {value}'``. In a pipe or a file the bytes of a
message are printed as they are; on a terminal, so that they never act on it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater import views
from headwater.cli import output

if TYPE_CHECKING:
    from headwater.log.types import Message, TopicMessage
    from headwater.views.streams import GoneView

FIELDS = ("offset", "time", "time_ms", "tag", "value", "attempt", "headers", "header[NAME]")
TOPIC_FIELDS = ("partition", *FIELDS)
_HEADER = re.compile(r"header\[(.+)\]")
_PART = re.compile(r"\{\{|\}\}|\{(header\[[^{}]+\]|\w*)\}|[{}]|\\[nt0\\]|[^{}\\]+|\\")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}


def _format_option(fields: tuple[str, ...]) -> Any:
    known = " ".join(f"{{{field}}}" for field in fields)
    return typer.Option(
        "--format",
        metavar="TEXT",
        help="Print each message as this text, with its fields in braces: "
        f"{known}. Known escapes are \\n \\t \\0.",
        show_default=False,
    )


LineFormat = Annotated[str | None, _format_option(FIELDS)]
TopicLineFormat = Annotated[str | None, _format_option(TOPIC_FIELDS)]


class Format:
    """A form of line; made of a text that ``check_format`` has accepted."""

    def __init__(self, text: str, fields: tuple[str, ...]) -> None:
        self._parts: list[tuple[bool, str]] = []
        for part in _PART.finditer(text):
            if part[1] is not None:
                if part[1] not in fields and not _HEADER.fullmatch(part[1]):
                    known = " ".join(f"{{{field}}}" for field in fields)
                    raise typer.BadParameter(f"--format knows no {part[0]}; it knows {known}")
                self._parts.append((True, part[1]))
            elif part[0] in "{}":
                raise typer.BadParameter(f"--format has a single {part[0]}; write it twice")
            else:
                plain = part[0].replace("{{", "{").replace("}}", "}")
                self._parts.append((False, _ESCAPES.get(part[0], plain)))

    def show(self, found: Iterable[Message | TopicMessage | GoneView]) -> None:
        """Print messages; what is gone has no line."""
        lines = [self._line(one) for one in found if not isinstance(one, views.streams.GoneView)]
        if not lines:
            return
        if sys.stdout.isatty():
            for line in lines:
                output.say(line.decode("utf-8", "backslashreplace"))
        else:
            typer.echo(b"\n".join(lines))

    def _line(self, message: Message | TopicMessage) -> bytes:
        return b"".join(
            _field(message, text) if is_field else text.encode() for is_field, text in self._parts
        )


def _field(message: Message | TopicMessage, name: str) -> bytes:
    if name == "value":
        return bytes(message.value)
    if name == "headers":
        return output.headers_text(message.headers) or b""
    if header := _HEADER.fullmatch(name):
        return message.headers.get(header[1], b"")
    if name == "time":
        return (output.time_text(message.time_ms) or "").encode()
    found = getattr(message, name)
    return b"" if found is None else str(found).encode("utf-8", "surrogateescape")


def check_format(
    text: str | None, as_json: bool, fields: tuple[str, ...] = FIELDS
) -> Format | None:
    """Return the form that a command was given; None without one."""
    if text is None:
        return None
    if as_json:
        raise typer.BadParameter("--format and --json exclude each other")
    return Format(text, fields)
