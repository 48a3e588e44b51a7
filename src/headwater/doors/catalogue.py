"""The catalogue: every kind of object, and the operations that its classes declare.

A kind says once where its objects are: their path in HTTP, their group of commands, their letters
in RESP, and how one is opened. Its operations are the declared methods of its class; the class for
asyncio and the generated one for threads declare the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_origin

from headwater.errors import HeadwaterError, UnknownGroup, UnknownTopic
from headwater.kernel.declaring import Param, Row, row_of

if TYPE_CHECKING:
    from headwater.store.call import Operation

DOORS: Final = ("command line", "HTTP", "RESP")
_PLAIN: Final = Param("")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: how doors address one, and how it is opened.

    ``path`` holds a parameter for each name of an address. ``module`` and ``name`` are those of the
    class for threads; the one for asyncio is ``AsyncName`` in ``aio_module``. ``open`` takes either
    client. ``check`` refuses an address that does not exist, where opening would create it.
    """

    name: str
    path: str
    command: str
    letters: str
    module: str
    cls: str
    open: Callable[..., Any]
    unknown: Callable[..., HeadwaterError]
    check: Callable[..., Operation[None]] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of an address, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def operation(self, verb: str) -> Declared:
        """Return the operation of that name, of the class for threads."""
        return next(one for one in self.operations(asyncio=False) if one.verb == verb)

    def operations(self, *, asyncio: bool) -> list[Declared]:
        """Return the operations of its class, in the order in which it declares them."""
        package, _, module = self.module.rpartition(".")
        name = f"{package}.aio_{module}" if asyncio else self.module
        cls = getattr(import_module(name), f"Async{self.cls}" if asyncio else self.cls)
        return [
            Declared(self, verb, row, method, *_signature(method))
            for verb, method in vars(cls).items()
            if (row := row_of(method)) is not None
        ]


class Parameter(NamedTuple):
    """A parameter of an operation; ``name`` is that of Python, ``called`` that of doors."""

    name: str
    kind: type
    says: Param
    default: Any = MISSING
    variadic: bool = False
    keyword: bool = False
    optional: bool = False
    # The parameter whose record has this field.
    of: str = ""

    @property
    def called(self) -> str:
        """Its name in doors."""
        return self.says.called or self.name

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING


@dataclass(frozen=True, eq=False)
class Declared:
    """An operation of a kind; ``returns`` is the type of what it returns."""

    kind: Kind
    verb: str
    row: Row
    method: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    records: Mapping[str, type]
    returns: Any

    @property
    def id(self) -> str:
        """Its name among all operations."""
        return f"{self.verb}_{self.kind.name}"

    @property
    def summary(self) -> str:
        """What it does: the first paragraph of the docstring, which holds for every door."""
        # Python -OO keeps no docstrings.
        text = (inspect.getdoc(self.method) or "").partition("\n\n")[0]
        return text.replace("``", "").replace("\n", " ")

    def is_in(self, door: str) -> bool:
        """Return whether a door is derived for it: it is not absent or written by hand."""
        return door not in self.row.absent and door not in self.row.override

    def call(self, target: Any, given: Mapping[str, Any]) -> Any:
        """Call the method of an opened object with values by the names of doors.

        Returns what the method returns: of asyncio, something to await.
        """
        positional: list[Any] = []
        named: dict[str, Any] = {}
        records: dict[str, dict[str, Any]] = {name: {} for name in self.records}
        for parameter in self.parameters:
            if parameter.called not in given:
                continue
            value = given[parameter.called]
            if parameter.of:
                records[parameter.of][parameter.name] = value
            elif parameter.variadic:
                positional.append(value)
            else:
                named[parameter.name] = value
        for name, facts in records.items():
            named[name] = self.records[name](**facts)
        # What is variadic comes last, and takes any mixture of iterables.
        return getattr(target, self.verb)(*positional, **named)


def _signature(method: Callable[..., Any]) -> tuple[tuple[Parameter, ...], dict[str, type], Any]:
    """Return the parameters of a method, the records among them, and what it returns."""
    signature = inspect.signature(method, eval_str=True)
    found: list[Parameter] = []
    records: dict[str, type] = {}
    for name, parameter in list(signature.parameters.items())[1:]:
        kind, _ = _annotated(parameter.annotation)
        if is_dataclass(kind):
            assert isinstance(kind, type)
            records[name] = kind
            hints = inspect.get_annotations(kind, eval_str=True)
            found += [
                _parameter(part.name, hints[part.name], part.default, True, name)
                for part in fields(kind)
            ]
            continue
        default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        found.append(
            _parameter(name, parameter.annotation, default, keyword)._replace(
                variadic=parameter.kind is inspect.Parameter.VAR_POSITIONAL
            )
        )
    return tuple(found), records, signature.return_annotation


def _parameter(name: str, annotation: Any, default: Any, keyword: bool, of: str = "") -> Parameter:
    kind, says = _annotated(annotation)
    options = get_args(kind)
    optional = type(None) in options
    kinds = [one for one in options if one is not type(None)]
    if optional:
        kind = str if str in kinds else kinds[0]
    return Parameter(name, kind, says, default, False, keyword, optional, of)


def _annotated(annotation: Any) -> tuple[Any, Param]:
    """Return the type of an annotation, and what doors say of it."""
    if get_origin(annotation) is not Annotated:
        return annotation, _PLAIN
    kind, *notes = get_args(annotation)
    says = next((note for note in notes if isinstance(note, Param)), _PLAIN)
    return kind, says


def _topic_exists(topic: str, *_: str) -> Operation[None]:
    from headwater.log.reading import partitions_of

    if not (yield from partitions_of(topic)):
        raise UnknownTopic(topic)


GROUP: Final = Kind(
    "group",
    "/v1/streams/{stream}/groups/{group}",
    "stream",
    "T",
    "headwater.log.group",
    "Group",
    lambda hw, stream, group: hw.stream(stream).group(group),
    UnknownGroup,
)
TOPIC_GROUP: Final = Kind(
    "topic_group",
    "/v1/topics/{topic}/groups/{group}",
    "topic",
    "TP",
    "headwater.log.topic",
    "TopicGroup",
    lambda hw, topic, group: hw.topic(topic).group(group),
    lambda topic, group: UnknownGroup(topic, group, topic=topic),
    _topic_exists,
)
KINDS: Final = (GROUP, TOPIC_GROUP)


@cache
def catalogue(*, asyncio: bool) -> tuple[Declared, ...]:
    """Return every operation of every kind."""
    return tuple(one for kind in KINDS for one in kind.operations(asyncio=asyncio))


def absences() -> Iterator[tuple[str, str, str]]:
    """Yield operations, the doors that do not have them, and the reasons."""
    for one in catalogue(asyncio=True):
        for door, reason in one.row.absent.items():
            yield one.id, door, reason
