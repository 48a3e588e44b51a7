"""The catalogue: every kind of object, and the operations that its classes declare.

A kind says once where its objects are: their path in HTTP, their group of commands, their letters
in RESP, and how one is opened. Its operations are the declared methods of its class; the class for
asyncio and the generated one for threads declare the same.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    NamedTuple,
    cast,
    get_args,
    get_origin,
)

from headwater.errors import (
    HeadwaterError,
    UnknownConsumer,
    UnknownGroup,
    UnknownIck,
    UnknownQueue,
    UnknownStream,
    UnknownTimedJob,
    UnknownTopic,
)
from headwater.kernel.declaring import Param, Row, Spelling, row_of
from headwater.kernel.inputs import LeaseMs

if TYPE_CHECKING:
    from headwater.store.call import Operation

_PLAIN: Final = Param("")
# What is given as a list, also where the method takes it by name.
_LISTS: Final = (Spelling.OFFSETS, Spelling.OFFSETS_BY_PARTITION, Spelling.TEXTS)
_FIRST: Final = Annotated[int, Param("How many.", least=1, most=10_000, metavar="N")]


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of object: how doors address one, and how it is opened.

    ``path`` holds a parameter for each name of an address. ``module`` and ``name`` are those of the
    class for threads; the one for asyncio is ``AsyncName`` in ``aio_module``. ``open`` takes either
    client. ``check`` refuses an address that does not exist, where opening would create it.
    ``state`` is the method that returns how an object stands; of one that does not exist, it
    raises, or returns what ``exists`` says no to. ``every`` returns the names of all objects, as
    far as a store knows them. ``wishes`` are what ``open`` takes by name, as operations ask for it.
    A ``collection`` is one object whose methods take an address first, and changes of it are
    recorded under a name, which ``open`` takes as ``by``. What is in a ``database`` beside the
    store has one class, whose methods block; tasks call them in a thread.
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
    state: str = "info"
    exists: Callable[[Any], bool] = lambda state: state is not None
    every: Callable[[Any], list[str]] = lambda _: []
    wishes: Mapping[str, Any] = field(default_factory=dict)
    collection: bool = False
    database: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of an address, in order."""
        return tuple(part[1:-1] for part in self.path.split("/") if part.startswith("{"))

    def operation(self, verb: str, *, asyncio: bool = False) -> Declared:
        """Return the operation of that name."""
        return next(one for one in self.operations(asyncio=asyncio) if one.verb == verb)

    def operations(self, *, asyncio: bool) -> tuple[Declared, ...]:
        """Return the operations of its class, in the order in which it declares them."""
        return _operations(self, asyncio)


@cache
def _operations(kind: Kind, asyncio: bool) -> tuple[Declared, ...]:
    asyncio = asyncio and not kind.database
    package, _, module = kind.module.rpartition(".")
    name = f"{package}.aio_{module}" if asyncio else kind.module
    cls = getattr(import_module(name), f"Async{kind.cls}" if asyncio else kind.cls)
    bound = 1 + len(kind.keys) if kind.collection else 1
    methods = {
        verb: method for base in reversed(cls.__mro__) for verb, method in vars(base).items()
    }
    return tuple(
        Declared(kind, verb, row, method, *_signature(kind, method, row, bound, _variables(cls)))
        for verb, method in methods.items()
        if (row := row_of(method)) is not None
    )


def _variables(cls: type) -> dict[Any, Any]:
    """Return what the type variables of the bases of a class stand for in it."""
    return {
        variable: kind
        for base in getattr(cls, "__orig_bases__", ())
        if (origin := get_origin(base)) is not None and origin is not Generic
        for variable, kind in zip(origin.__parameters__, get_args(base), strict=True)
    }


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
    # With what the object is opened; or how many are taken of what the method yields.
    outside: bool = False

    @property
    def called(self) -> str:
        """Its name in doors."""
        return self.says.called or self.name

    @property
    def option(self) -> str:
        """Its option of a command; a span and a point of time have their unit in their value."""
        timed = self.says.shape in (Spelling.SPAN, Spelling.TIME)
        name = self.called.removesuffix("_ms") if timed else self.called
        return f"--{name.replace('_', '-')}"

    @property
    def listed(self) -> bool:
        """Whether it is given as a list."""
        return self.variadic or self.says.shape in _LISTS

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is MISSING


class TakenRecord(NamedTuple):
    """A parameter of which doors take the fields; one that is ``optional`` need not have any."""

    kind: Any
    optional: bool


@dataclass(frozen=True, eq=False)
class Declared:
    """An operation of a kind; ``returns`` is the type of what it returns.

    ``room`` is the parameter that says how many bytes a reply may have, if there is one.
    """

    kind: Kind
    verb: str
    row: Row
    method: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    records: Mapping[str, TakenRecord]
    returns: Any
    room: str = ""

    @property
    def yields(self) -> bool:
        """Whether the method yields what doors show as a list."""
        return get_origin(self.returns) in (AsyncIterator, Iterator)

    @property
    def rows(self) -> Any:
        """The type of each row, of a method that yields or returns a list; else None."""
        several = self.yields or get_origin(self.returns) is list
        return get_args(self.returns)[0] if several else None

    def wishes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return with what the object is opened."""
        return {name: given[name] for name in self.row.wishes if name in given}

    @cached_property
    def id(self) -> str:
        """Its name among all operations."""
        return f"{self.verb}_{self.kind.name}"

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The names in its path: those of the object's address, and parameters."""
        return self.kind.keys + self.in_path

    @cached_property
    def in_path(self) -> tuple[str, ...]:
        """The parameters that its path names."""
        parts = self.row.http.partition(" ")[2].split("/")
        return tuple(part[1:-1] for part in parts if part.startswith("{"))

    @cached_property
    def summary(self) -> str:
        """What it does: the first paragraph of the docstring, which holds for every door."""
        # Python -OO keeps no docstrings.
        text = (inspect.getdoc(self.method) or "").partition("\n\n")[0]
        return text.replace("``", "").replace("\n", " ")

    @property
    def checks(self) -> bool:
        """Whether the address is checked before; one that is removed itself need not be there."""
        own = self.row.must and len(self.kind.keys) == 1
        return self.kind.check is not None and not own

    def taken_by(self, door: str) -> tuple[Parameter, ...]:
        """Return the parameters that a door takes."""
        return tuple(one for one in self.parameters if door in one.says.doors)

    @cached_property
    def server_summary(self) -> str:
        """What it does where servers bound what they reply."""
        bounded = bool(self.room) or self.yields
        return self.summary + (" No more are returned once they have 4 MiB." if bounded else "")

    def is_in(self, door: str) -> bool:
        """Return whether a door is derived for it: it is not absent or written by hand."""
        return door not in self.row.absent and door not in self.row.override

    def call(self, target: Any, given: Mapping[str, Any], room: int | None = None) -> Any:
        """Call the method of an opened object with values by the names of doors.

        ``room`` is how many bytes a reply may have, where the method can be told. Returns what the
        method returns: of asyncio, something to await.
        """
        positional, named = self.arguments(given, room)
        return getattr(target, self.verb)(*positional, **named)

    def arguments(
        self, given: Mapping[str, Any], room: int | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return values by the names of doors as the method takes them."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        records: dict[str, dict[str, Any]] = {name: {} for name in self.records}
        for parameter in self.parameters:
            if parameter.outside or parameter.called not in given:
                continue
            value = given[parameter.called]
            if parameter.of:
                records[parameter.of][parameter.name] = value
            elif parameter.variadic:
                positional += value if isinstance(value, list) else [value]
            else:
                named[parameter.name] = value
        for name, facts in records.items():
            record = self.records[name]
            if not record.optional or any(fact is not None for fact in facts.values()):
                named[name] = record.kind(**facts)
        if self.room and room is not None:
            named[self.room] = room
        if positional:
            # They stand behind all that may be given by position.
            first = [one.name for one in self.parameters if one.name in named and not one.keyword]
            positional = [*(named.pop(name) for name in first), *positional]
        # What is variadic comes last, and takes any mixture of iterables.
        return positional, named


def _signature(
    kind: Kind, method: Callable[..., Any], row: Row, bound: int, variables: Mapping[Any, Any]
) -> tuple[tuple[Parameter, ...], dict[str, TakenRecord], Any, str]:
    """Return the parameters of a method, the records among them, what it returns, and the room.

    Its first parameters are ``bound``: the object itself, and in a collection the address. What the
    type variables of its class stand for is in ``variables``.
    """
    signature = inspect.signature(method, eval_str=True)
    found: list[Parameter] = []
    records: dict[str, TakenRecord] = {}
    room = ""
    for name, parameter in list(signature.parameters.items())[bound:]:
        annotation = variables.get(parameter.annotation, parameter.annotation)
        annotated, says = _annotated(annotation)
        if says.shape is Spelling.ROOM:
            room = name
            continue
        default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
        taken = next(filter(is_dataclass, (annotated, *get_args(annotated))), None)
        if taken is not None and says.shape is not Spelling.DOCUMENT:
            records[name] = TakenRecord(taken, default is None)
            hints = inspect.get_annotations(cast(type, taken), eval_str=True)
            found += [
                _parameter(part.name, hints[part.name], part.default, True, name)
                for part in fields(cast(Any, taken))
                if part.name not in says.without
            ]
            continue
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        variadic = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if variadic and found:
            # Something else is given already.
            default = ()
        made = _parameter(name, annotation, default, keyword)
        found.append(made._replace(variadic=variadic))
    for name in row.wishes:
        wish = _parameter(name, kind.wishes[name], None, keyword=True)
        found.append(wish._replace(outside=True))
    returns = signature.return_annotation
    if get_origin(returns) in (AsyncIterator, Iterator):
        found.append(_parameter("count", _FIRST, 100, keyword=True)._replace(outside=True))
    return tuple(found), records, returns, room


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
QUEUE: Final = Kind(
    "queue",
    "/v1/queues/{queue}",
    "queue",
    "Q",
    "headwater.queue.queue",
    "Queue",
    lambda hw, queue: hw.queue(queue),
    UnknownQueue,
    state="stats",
    exists=lambda stats: stats.exists or stats.waiting,
    every=lambda hw: hw.queues(),
)
ICK: Final = Kind(
    "ick",
    "/v1/icks/{key}",
    "ick",
    "ICK",
    "headwater.ick.ick",
    "Ick",
    lambda hw, key: hw.ick(key),
    UnknownIck,
    state="stats",
)
CHANNEL: Final = Kind(
    "channel",
    "/v1/channels/{channel}",
    "ick channel",
    "CH",
    "headwater.ick.ick",
    "IckChannel",
    lambda hw, channel, **wishes: hw.ick_channel(channel, **wishes),
    UnknownIck,
    state="stats",
    every=lambda hw: hw.ick_channels(),
    wishes={
        "consumer": Annotated[
            str | None, Param("Name of the consumer. Default: a new name each time.")
        ],
        "ack_ms": LeaseMs,
        "shards": Annotated[
            int | None,
            Param("Shards of a new channel. Default: 8.", least=1, most=1024, metavar="N"),
        ],
    },
)


class Named:
    """An object of a collection: it has the methods of that, which take its address first."""

    def __init__(self, collection: Any, *names: str) -> None:
        self._collection = collection
        self._names = names

    def __getattr__(self, verb: str) -> Any:
        return partial(getattr(self._collection, verb), *self._names)


def _timed_job(hw: Any, job: str, by: str | None = None) -> Named:
    from headwater.aio_client import AsyncHeadwater
    from headwater.timed.aio_timed_jobs import AsyncTimedJobs
    from headwater.timed.timed_jobs import TimedJobs

    jobs = AsyncTimedJobs if isinstance(hw, AsyncHeadwater) else TimedJobs
    return Named(jobs(hw, by), job)


TIMED_JOB: Final = Kind(
    "timed_job",
    "/v1/timed-jobs/{job}",
    "cron",
    "CRON",
    "headwater.timed.timed_jobs",
    "TimedJobs",
    _timed_job,
    UnknownTimedJob,
    collection=True,
)
STREAM: Final = Kind(
    "stream",
    "/v1/streams/{stream}",
    "stream",
    "T",
    "headwater.log.stream",
    "Stream",
    lambda hw, stream: hw.stream(stream),
    UnknownStream,
)
TOPIC: Final = Kind(
    "topic",
    "/v1/topics/{topic}",
    "topic",
    "TP",
    "headwater.log.topic",
    "Topic",
    lambda hw, topic: hw.topic(topic),
    UnknownTopic,
    _topic_exists,
)


def _consumer(outbox: Any, hw: Any, consumer: str) -> Any:
    from headwater.outbox.known_consumers import KnownConsumer

    return KnownConsumer(outbox, hw, consumer)


CONSUMER: Final = Kind(
    "consumer",
    "/v1/consumers/{consumer}",
    "consumer",
    "",
    "headwater.outbox.known_consumers",
    "KnownConsumer",
    _consumer,
    UnknownConsumer,
    state="positions",
    database=True,
)
KINDS: Final = (GROUP, TOPIC_GROUP, STREAM, TOPIC, QUEUE, ICK, CHANNEL, TIMED_JOB, CONSUMER)


@cache
def catalogue(*, asyncio: bool) -> tuple[Declared, ...]:
    """Return every operation of every kind."""
    return tuple(one for kind in KINDS for one in kind.operations(asyncio=asyncio))
