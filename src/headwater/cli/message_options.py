"""Options of the commands that write and read messages, of streams and of topics."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.option_groups import OptionGroup
from headwater.cli.options import BatchSize, BlockMs, Count

if TYPE_CHECKING:
    from headwater.log.group import Group
    from headwater.log.topic import TopicGroup
    from headwater.log.types import Message, TopicMessage

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
SequenceNumber = Annotated[
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
    typer.Option(min=1, help="Group: milliseconds until unacknowledged messages are redelivered."),
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


@dataclass(frozen=True)
class WriteFlags(OptionGroup):
    """What a command that writes was given: one message, or how lines become messages."""

    tag: OneTag = None
    value: OneValue = None
    line_tag: LineTag = None
    separator: Separator = None
    batch: BatchSize = 1000
    backlog: Backlog = None
    producer: Producer = None
    sequence: SequenceNumber = None
    header: GivenHeader = None

    # An option of commands on streams only.
    in_base64 = False

    def check(self) -> None:
        """Refuse what does not go together, and headers that are none."""
        headers_of(self.header)
        if (self.tag is None) != (self.value is None):
            raise typer.BadParameter("give TAG and VALUE, or neither and lines on standard input")
        if (self.producer is None) != (self.sequence is None):
            raise typer.BadParameter("--producer and --sequence go together")
        if self.tag is not None:
            if self.line_tag is not None or self.separator is not None:
                raise typer.BadParameter("--tag and --separator are for lines from standard input")
            return
        if self.in_base64:
            raise typer.BadParameter("--base64 is for one message: give TAG and VALUE")
        if self.line_tag is not None and self.separator is not None:
            raise typer.BadParameter("--tag and --separator exclude each other")
        if self.producer is not None:
            raise typer.BadParameter("--producer is for one message: give TAG and VALUE")
        if self.separator == "":
            raise typer.BadParameter("--separator must not be empty")


@dataclass(frozen=True)
class StreamWriteFlags(WriteFlags):
    """The same, where the value of one message may be base64."""

    in_base64: InBase64 = False


@dataclass(frozen=True)
class ReadFlags(OptionGroup):
    """Which messages are read: those from an offset on, or those that a group's member gets."""

    offset: FirstOffset = None
    count: Count = 10
    block_ms: BlockMs = 0
    group: AsGroup = None
    ack_ms: AckMs = None
    expire_ms: ExpireMs = None

    def check(self) -> None:
        """Refuse options of a group without one."""
        if self.group is None and (self.ack_ms is not None or self.expire_ms is not None):
            raise typer.BadParameter("--ack-ms and --expire-ms need --group")

    def take(self, member: Group | TopicGroup) -> Sequence[Message | TopicMessage]:
        """Return the messages that a member of the group gets."""
        return member.read(
            self.count, block_ms=self.block_ms, ack_ms=self.ack_ms, expire_ms=self.expire_ms
        )


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
