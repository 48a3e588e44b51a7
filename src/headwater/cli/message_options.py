"""Options of the commands that write and read messages, of streams and of topics."""

from __future__ import annotations

import os
from typing import Annotated

import typer

OneTag = Annotated[str | None, typer.Argument(metavar="TAG", help="One message: its tag.")]
OneValue = Annotated[str | None, typer.Argument(metavar="VALUE", help="One message: its value.")]
InBase64 = Annotated[
    bool, typer.Option("--base64", help="VALUE is base64, of which the bytes are written.")
]
LineTag = Annotated[
    str | None, typer.Option("--tag", help="Lines of stdin: the tag of every message.")
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        help="Lines of stdin: the text between tag and value; its first occurrence counts.",
    ),
]
Backlog = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Then evict old messages, but keep at least N, and all that readers need.",
    ),
]
Producer = Annotated[
    str | None,
    typer.Option(
        help="One message: who writes it. A repeat with the same --sequence writes nothing."
    ),
]
Sequence = Annotated[
    int | None,
    typer.Option(min=0, help="One message: its number, which grows from write to write."),
]
GivenHeader = Annotated[
    list[str] | None,
    typer.Option(
        "--header", metavar="NAME=VALUE", help="A header of every message; may be repeated."
    ),
]
FirstOffset = Annotated[
    int | None,
    typer.Option("--offset", "-o", min=1, help="The first offset.", show_default="first"),
]
AsGroup = Annotated[
    str | None, typer.Option(help="Read as a member of this group instead of by offset.")
]
AckMs = Annotated[
    int | None,
    typer.Option(
        "--ack-ms",
        "--retry-ms",
        min=1,
        help="Group: milliseconds until unacknowledged messages are redelivered.",
    ),
]
ExpireMs = Annotated[
    int | None,
    typer.Option(min=1, help="Group: milliseconds until unacknowledged messages are given up."),
]
NewestLines = Annotated[
    int | None,
    typer.Option(
        "--lines",
        "-n",
        min=0,
        metavar="N",
        help="Begin with the newest N messages.",
        show_default="10, or --count when it is less",
    ),
]
StopAfter = Annotated[
    int | None,
    typer.Option("--count", "-c", min=0, metavar="N", help="Stop after N messages."),
]


def check_group_options(group: str | None, ack_ms: int | None, expire_ms: int | None) -> None:
    """Refuse options of a group without one."""
    if group is None and (ack_ms is not None or expire_ms is not None):
        raise typer.BadParameter("--ack-ms and --expire-ms need --group")


def headers_of(given: list[str] | None) -> dict[str, bytes]:
    """Return headers that were given as NAME=VALUE; refuses what is not, and a name twice."""
    found: dict[str, bytes] = {}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"--header {text!r} has no '='; write NAME=VALUE")
        if name in found:
            raise typer.BadParameter(f"--header {name!r} is there twice; name each once")
        found[name] = os.fsencode(value)
    return found
