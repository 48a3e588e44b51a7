"""What commands take in common, groups of options, and how words are parsed."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_type_hints,
)

import typer

from headwater.cli import completing
from headwater.errors import InvalidInput, UnknownQueue, UnknownStream, UnknownTopic
from headwater.kernel.declaring import Spelling
from headwater.kernel.inputs import MAX_EXACT, parse_size, parse_span

if TYPE_CHECKING:
    from headwater.client import Headwater
    from headwater.log.group import Group
    from headwater.log.stream import Stream
    from headwater.log.topic import Topic, TopicGroup
    from headwater.log.types import Message, TopicMessage
    from headwater.queue.queue import Queue


T = TypeVar("T")
_COMPLETED: Final[dict[str, Any]] = {
    "stream": completing.streams,
    "topic": completing.topics,
    "group": completing.groups,
    "queue": completing.queues,
    "channel": completing.channels,
    "job": completing.timed_jobs,
}


@dataclass(frozen=True)
class OptionGroup:
    """A group of options; each field is annotated as a parameter of a command would be."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the options of its groups one by one, as Typer needs them.

    Beside groups, it may take limits of servers, whose options are made of what they declare.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            for option in _parameters(groups[name]):
                # Limits of several servers share some options.
                found.setdefault(option.name, option)
        else:
            found[name] = keyword(name, hints[name], parameter.default)

    def run(**given: Any) -> None:
        made = {name: given[name] for name in hints.keys() & given.keys()}
        made |= {name: _group(group, given) for name, group in groups.items()}
        command(**made)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, __name__
    return with_parameters(run, list(found.values()))


def with_parameters(
    run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return a function that Typer takes for one with these parameters."""
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a parameter of a command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _group(group: type, given: Mapping[str, Any]) -> Any:
    """Return a group of options, or limits, of what was typed."""
    if issubclass(group, OptionGroup):
        return group(**{field.name: given[field.name] for field in fields(group)})
    from headwater.serve.limits import declared_limits

    values = {}
    for name, says in declared_limits(group).items():
        called = says.called or name
        typed = given[called]
        is_size = says.shape is Spelling.SIZE
        values[name] = size_bytes(typed, option_of(called)) if is_size else typed
    return group(**values)


def option_of(name: str) -> str:
    """Return the option of a parameter of that name."""
    return f"--{name.replace('_', '-')}"


def _parameters(group: Any) -> list[inspect.Parameter]:
    """Return a parameter for each option of a group, or for each limit."""
    hints = get_type_hints(group, include_extras=True)
    if issubclass(group, OptionGroup):
        return [
            keyword(
                field.name,
                hints[field.name],
                inspect.Parameter.empty if field.default is MISSING else field.default,
            )
            for field in fields(group)
        ]
    return [_of_limit(hints[limit.name], limit.name, limit.default) for limit in fields(group)]


def _of_limit(hint: Any, name: str, default: Any) -> inspect.Parameter:
    (says,) = hint.__metadata__
    called: str = says.called or name
    kind: type = int
    if says.shape is Spelling.SIZE:
        kind, default = str, f"{default >> 20}MiB" if default >> 20 else f"{default >> 10}KiB"
    option = typer.Option(option_of(called), metavar=says.metavar or None, help=says.help)
    return keyword(called, Annotated[kind, option], default)


def _or_of_root(context: typer.Context, value: str | None) -> str | None:
    """Return the store that was named after the command, else the one named before it."""
    return value if value is not None else context.find_root().params.get("store_url")


def _store_option(help: str) -> Any:
    return typer.Option(
        "--store", metavar="URL", help=help, callback=_or_of_root, show_default=False
    )


StoreUrl = Annotated[
    str | None,
    _store_option("The store. Default: $HEADWATER_URL, else an embedded one in .headwater/."),
]
History = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=0,
        help="Series of history kept in the store, 59 kB each at most; 0 keeps none.",
    ),
]
ServedFarm = Annotated[
    str | None,
    typer.Option(
        "--farm", metavar="FARM", help="Also serve the timelines of this farm.", show_default=False
    ),
]


def _database_option(help: str) -> Any:
    return typer.Option("--db", metavar="URL", envvar="HEADWATER_DB", help=help, show_default=False)


ServedDatabase = Annotated[
    str | None, _database_option("Also serve the outbox and consumers of this database.")
]
LookedAtDatabase = Annotated[
    str | None,
    _database_option("Also look at the outbox and the consumers of this database."),
]
DatabaseUrl = Annotated[
    str, _database_option("The database: sqlite:///file or postgresql://user@host/database.")
]
OtherStoreUrl = Annotated[
    str | None,
    _store_option("The store to use instead of a private one; its server is not killed."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]


def name_argument(kind: str, help: str = "") -> Any:
    """Return the argument that names an object of a kind; the shell completes it."""
    return typer.Argument(
        metavar=kind.upper(),
        help=help or f"Name of the {kind}.",
        show_default=False,
        autocompletion=_COMPLETED.get(kind),
    )


StreamName = Annotated[str, name_argument("stream")]
OnlyStream = Annotated[str | None, name_argument("stream", "One stream only.")]
TopicName = Annotated[str, name_argument("topic")]
QueueName = Annotated[str, name_argument("queue")]
GroupName = Annotated[str, name_argument("group")]
OnePartition = Annotated[
    int | None,
    typer.Option("--partition", "-p", min=0, metavar="P", help="Only this partition."),
]
Position = Annotated[
    str,
    typer.Argument(
        metavar="TO",
        help="An offset, first, last, a time like 2030-01-31T12:00:00Z, or -1000 or +1000: so many "
        "messages back or on from the present position.",
    ),
]
Count = Annotated[
    int, typer.Option("--count", "-c", min=0, metavar="N", help="Print at most N of them.")
]
BatchSize = Annotated[
    int,
    typer.Option("--batch", min=1, max=100_000, help="Lines of stdin in one batch."),
]
BlockMs = Annotated[
    int, typer.Option(min=0, help="Milliseconds to wait for a first message, when there is none.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")
]


def interruptible() -> AbstractContextManager[None]:
    """Let SIGTERM end a block as Ctrl-C does, at once, by KeyboardInterrupt.

    Ctrl-C does so even in a program that a shell started in the background, with SIGINT ignored.
    """
    from headwater.kernel.stopping import stop_on_signals

    def interrupt() -> None:
        raise KeyboardInterrupt

    return stop_on_signals(interrupt)


@contextmanager
def connected(url: str | None, *, runs_on: bool = False) -> Iterator[Headwater]:
    """Connect for the length of a command; one that ``runs_on`` waits for the store to start."""
    from headwater.client import connect
    from headwater.kernel.failures import START_MS

    # Else a person waits, who may have mistyped the URL.
    with connect(url, wait_ms=START_MS if runs_on else 0) as hw:
        yield hw


def topic_of(hw: Headwater, name: str) -> Topic:
    """Return a topic that exists; raises UnknownTopic."""
    names = hw.topics()
    if name not in names:
        raise UnknownTopic(name, similar(name, names))
    return hw.topic(name)


def queue_of(hw: Headwater, name: str) -> Queue:
    """Return a queue that exists; raises UnknownQueue."""
    queue = hw.queue(name)
    if not queue.stats().exists:
        raise UnknownQueue(name, similar(name, hw.queues()))
    return queue


def known(hw: Headwater, name: str) -> Stream:
    """Return a stream that was written, or that somebody reads already; raises UnknownStream."""
    stream = hw.stream(name)
    facts = stream.info()
    if not (facts.exists or facts.groups or facts.readers):
        raise UnknownStream(name, similar(name, hw.streams()))
    return stream


def _by_url(
    find: Callable[[Headwater, str], T],
) -> Callable[[str | None, str], AbstractContextManager[T]]:
    """Return what yields an object that exists; most often the name of another is mistyped."""

    @contextmanager
    def opened(url: str | None, name: str) -> Iterator[T]:
        with connected(url) as hw:
            yield find(hw, name)

    return opened


known_topic = _by_url(topic_of)
known_queue = _by_url(queue_of)
known_stream = _by_url(known)


def similar(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was most likely meant; None when none is like it."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1)), None)


def confirm(question: str, yes: bool) -> None:
    """Ask before something is removed, unless the user said yes already; ends the command on no."""
    if yes:
        return
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo(err=True)  # behind the question
        raise InvalidInput("nothing was removed; without a terminal, say --yes") from None


def refused(why: str, option: str) -> typer.BadParameter:
    """Return the error that what was given for an option, or an argument, cannot be used."""
    return typer.BadParameter(why, param_hint=f"'{option}'")


def offsets(words: list[str]) -> list[int | tuple[int, int]]:
    """Parse offsets, as 5, and ranges of them, as 5-9."""
    found: list[int | tuple[int, int]] = []
    for word in words:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", word, re.ASCII)
        if not match:
            raise refused(f"{word!r} is not an offset like 5 or a range like 5-9", "OFFSET")
        ends = [_offset(end, "OFFSET") for end in match.groups() if end is not None]
        if ends != sorted(ends):
            raise InvalidInput(f"the range {word} ends before it starts; swap its ends")
        found.append((ends[0], ends[1]) if len(ends) == 2 else ends[0])
    return found


def _offset(word: str, option: str) -> int:
    offset = int(word)
    if not 1 <= offset <= MAX_EXACT:
        raise refused(f"{word} is not an offset; offsets are from 1 to {MAX_EXACT}", option)
    return offset


def in_topic(words: list[str]) -> dict[int, list[int | tuple[int, int]]]:
    """Parse offsets of a topic, as 3:5, and ranges of them, as 3:5-9; returns them by partition."""
    found: dict[int, list[int | tuple[int, int]]] = {}
    for word in words:
        place, colon, rest = word.partition(":")
        if not (colon and place.isascii() and place.isdecimal()):
            raise refused(
                f"{word!r} is not a partition with an offset like 3:5 or a range like 3:5-9",
                "OFFSET",
            )
        found.setdefault(int(place), []).extend(offsets([rest]))
    return found


def milliseconds(word: str) -> str:
    """Return a span of time with a unit as bare milliseconds; other words as they are."""
    return str(parse_span(word)) if re.fullmatch(r"\d+(ms|[smhdw])", word) else word


def duration_ms(word: str, option: str) -> int:
    """Parse a span of time, as 7d, 12h, 30m, 45s, 500ms; a bare number is milliseconds."""
    try:
        return parse_span(word)
    except InvalidInput as error:
        raise refused(str(error), option) from None


def size_bytes(word: str, option: str) -> int:
    """Parse a size, as 1000000, 500MB, 2GiB."""
    try:
        return parse_size(word)
    except InvalidInput as error:
        raise refused(str(error), option) from None


def point_in_time(word: str, option: str) -> dt.datetime:
    """Parse a time as ISO 8601 writes it; without a zone it is that of this machine."""
    try:
        time = dt.datetime.fromisoformat(word)
        # A time that a zone puts before the year 1 or behind 9999 has no number of seconds.
        time = time if time.tzinfo else time.astimezone()
        if time.timestamp() >= 0:
            return time
    except (ValueError, OverflowError):
        pass
    raise refused(f"{word!r} is not a time like 2030-01-31T12:00:00Z", option)


def position(word: str, option: str = "TO") -> Literal["first", "last"] | int | dt.datetime:
    """Parse a place in a stream: first, last, an offset, or a time as ISO 8601 writes it.

    A time without a zone is that of this machine.
    """
    if word == "first":
        return "first"
    if word == "last":
        return "last"
    if word.isascii() and word.isdecimal():
        return _offset(word, option)
    try:
        return point_in_time(word, option)
    except typer.BadParameter:
        like = "'first', 'last', an offset nor a time like 2030-01-31T12:00:00Z"
        raise refused(f"{word!r} is neither {like}", option) from None


class Steps(NamedTuple):
    """How many messages to go on, or back if negative, from the present position."""

    messages: int


# For a command that takes such a number: -1000 is not an option there.
TAKES_STEPS = {"ignore_unknown_options": True}


def target(word: str) -> Literal["first", "last"] | int | dt.datetime | Steps:
    """Parse where to seek to: a position, or how many messages to go back or on."""
    if re.fullmatch(r"[+-]\d{1,16}", word, re.ASCII):
        return Steps(int(word))
    if word.startswith("-"):
        raise typer.BadParameter(f"there is no option {word}")
    return position(word)


def from_here(
    sought: Literal["first", "last"] | int | dt.datetime | Steps, here: int
) -> Literal["first", "last"] | int | dt.datetime:
    """Return the position to seek to from the present one."""
    return max(1, here + sought.messages) if isinstance(sought, Steps) else sought


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

    tag: Annotated[str | None, typer.Argument(metavar="TAG", help="One message: its tag.")] = None
    value: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="One message: its value.")
    ] = None
    line_tag: Annotated[
        str | None, typer.Option("--tag", help="Lines of stdin: the tag of every message.")
    ] = None
    separator: Annotated[
        str | None,
        typer.Option(
            "--separator",
            help="Lines of stdin: the text between tag and value; its first occurrence counts.",
        ),
    ] = None
    batch: BatchSize = 1000
    backlog: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Then evict old messages, but keep at least N, and all that readers need.",
        ),
    ] = None
    producer: Annotated[
        str | None,
        typer.Option(
            help="One message: who writes it. A repeat with the same --sequence writes nothing."
        ),
    ] = None
    sequence: Annotated[
        int | None,
        typer.Option(min=0, help="One message: its number, which grows from write to write."),
    ] = None
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

    in_base64: Annotated[
        bool, typer.Option("--base64", help="VALUE is base64, of which the bytes are written.")
    ] = False


@dataclass(frozen=True)
class ReadFlags(OptionGroup):
    """Which messages are read: those from an offset on, or those that a group's member gets."""

    offset: FirstOffset = None
    count: Count = 10
    block_ms: BlockMs = 0
    group: Annotated[
        str | None, typer.Option(help="Read as a member of this group instead of by offset.")
    ] = None
    ack_ms: Annotated[
        int | None,
        typer.Option(
            min=1, help="Group: milliseconds until unacknowledged messages are redelivered."
        ),
    ] = None
    expire_ms: Annotated[
        int | None,
        typer.Option(min=1, help="Group: milliseconds until unacknowledged messages are given up."),
    ] = None

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


@dataclass(frozen=True)
class GroupSettings(OptionGroup):
    """What a command was asked to set; None leaves a setting as it is."""

    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="WHERE",
            help="Create the group: it starts at an offset, first, last, or a time.",
            show_default=False,
        ),
    ] = None
    max_pending: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Deliver no new messages while N await their ack; 0: no limit.",
            show_default=False,
        ),
    ] = None
    dead_letters: Annotated[
        bool | None,
        typer.Option(
            "--dead-letters/--no-dead-letters",
            help="Keep what expires in the stream STREAM.GROUP.dead, or drop it.",
            show_default=False,
        ),
    ] = None
    letters_to: Annotated[
        str | None,
        typer.Option(
            "--dead-letters-to",
            metavar="STREAM",
            help="Keep what expires in this stream.",
            show_default=False,
        ),
    ] = None
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered",
            help="Keep the order of each tag from now on: a message waits for those before it.",
        ),
    ] = False

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``group`` beside its name; refuses what does not go together."""
        if self == GroupSettings():
            raise typer.BadParameter(
                "give --start, --max-pending, --dead-letters, --no-dead-letters, "
                "--dead-letters-to or --ordered"
            )
        if self.dead_letters is not None and self.letters_to is not None:
            raise typer.BadParameter(
                "--dead-letters-to excludes --dead-letters and --no-dead-letters"
            )
        return {
            "start": "first" if self.start is None else position(self.start, "--start"),
            "max_pending": self.max_pending,
            "dead_letters": self.dead_letters if self.letters_to is None else self.letters_to,
            "ordered": self.ordered,
        }

    def check(self, where: str, group: str, there: Collection[str]) -> None:
        """Refuse to create a group that is there, or to change one that is not."""
        if self.start is not None and group in there:
            command = f"headwater {where.partition(' ')[0]} seek"
            raise InvalidInput(f"{where} has a group {group!r}; use `{command}` to move it")
        if self.start is None and group not in there:
            likely = similar(group, there)
            cure = f"did you mean {likely!r}?" if likely else "give --start, to create it"
            raise InvalidInput(f"{where} has no group {group!r}; {cure}")
