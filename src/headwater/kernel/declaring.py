"""Operations as data: a method says once what every door needs to know about it.

The methods of the asyncio classes are the declarations. Their signatures name the parameters, the
docstring's first sentence is the summary everywhere, and ``operation`` adds what a signature cannot
say. The command line, HTTP, RESP, the console, the audit and the reference pages are derived from
that (``headwater/doors/``).

    @operation(Scope.WRITE, "nacked", says="returned {nacked:pending message}")
    async def nack(self, *offsets: GivenOffsets, delay_ms: DelayMs = 0) -> int:
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])

_ROW: Final = "__operation__"
DOORS: Final = ("command line", "HTTP", "RESP")


class Scope(enum.IntEnum):
    """What a token allows; the greater includes the lesser."""

    READ = 1
    WRITE = 2
    ADMIN = 3


class Spelling(enum.Enum):
    """How a parameter is spelled in doors, where its Python type does not say it."""

    PLAIN = "plain"
    MS = "ms"
    OFFSETS = "offsets"
    OFFSETS_BY_PARTITION = "offsets by partition"
    POSITION = "position"
    POSITION_BY_PARTITION = "position by partition"
    TEXTS = "texts"
    MEMBERS = "members"
    SCORES = "scores"
    SPAN = "span of time"
    TIME = "point in time"
    SIZE = "size"
    DOCUMENT = "document"
    ROOM = "room"


@dataclass(frozen=True, slots=True)
class Param:
    """What doors say of a parameter and accept for it, beside its name and type.

    ``called`` is its name in doors, if that is another one. ``metavar`` stands for it in the help
    of a command, ``word`` before it in a command of RESP. The word of a flag that is on by default
    turns it off, in the command line, too. Only ``doors`` take it. ``per_request`` is what a
    request of HTTP has where it gives none. Of a record, doors do not take the fields ``without``.
    What is ``typed`` is an option of a command, with this default, although the method requires it.

    A DOCUMENT is a record as another operation answered it: a field of JSON, or lines of standard
    input. ROOM is how many bytes a reply may have; servers set it, and nobody is asked for it.
    """

    help: str
    shape: Spelling = Spelling.PLAIN
    least: int | None = None
    most: int | None = None
    called: str = ""
    metavar: str = ""
    word: str = ""
    doors: tuple[str, ...] = DOORS
    per_request: int | None = None
    without: tuple[str, ...] = ()
    typed: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """What ``operation`` adds to a signature.

    ``result`` is the name of what the method returns; a record of several fields has none.
    ``says`` is the sentence for people, and ``says_not`` the one for a result that is false.
    ``http`` is the method and the end of the path, which may name parameters; ``command`` is the
    name in the command line, ``resp`` the name in RESP; each is made by rule where it is not given.
    ``asks`` is the question before the command line does it; it may name fields of ``info()``. It
    does not ask where one of the parameters ``unless`` is given.
    ``known`` operations are refused for an object that does not exist, although the library would
    create it; the command line refuses all that do not say that they may be the first, by
    ``creates``. A ``must`` that returns False is refused, too. ``absent`` gives the reason why a
    door does not have it, and ``override`` names the doors in which it is written by hand.
    ``wishes`` are parameters with which the object is opened for it; see Kind.

    A method that returns a list is a table in the command line, or ``says_not`` when it is empty;
    one that yields is a list of the first ones, in every door.
    """

    scope: Scope
    result: str = ""
    says: str = ""
    says_not: str = ""
    http: str = ""
    command: str = ""
    resp: str = ""
    asks: str = ""
    unless: tuple[str, ...] = ()
    known: bool = False
    must: bool = False
    creates: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)
    override: tuple[str, ...] = ()
    wishes: tuple[str, ...] = ()


def operation(scope: Scope, result: str = "", **more: Any) -> Callable[[F], F]:
    """Declare a method as an operation of every door; see Row for what may be said."""
    row = Row(scope, result, **more)

    def declare(method: F) -> F:
        setattr(method, _ROW, row)
        return method

    return declare


def across(declared: Callable[..., Any], **more: Any) -> Callable[[F], F]:
    """Declare a method of a topic as what another one is for a stream; ``more`` differs from it."""
    row = row_of(declared)
    assert row is not None, f"{declared.__name__} is not declared"

    def declare(method: F) -> F:
        setattr(method, _ROW, replace(row, **more))
        return method

    return declare


def row_of(method: object) -> Row | None:
    """Return what was declared of a method; None for others."""
    return getattr(method, _ROW, None)


def facts_of(record: type) -> dict[str, Any]:
    """Return what doors show of a record, with the types: its fields, and what SHOWN names.

    These are properties, of a class that is more than its fields.
    """
    facts = get_type_hints(record)
    facts.pop("SHOWN", None)
    for name in getattr(record, "SHOWN", ()):
        facts[name] = get_type_hints(getattr(record, name).fget)["return"]
    return facts
