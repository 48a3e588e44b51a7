"""App: a registry of what an application runs, and the ways to run it.

app = App(db="sqlite:///shop.db")

    @app.worker(stream="orders", group="mail", codec=Order, concurrency=8, max_attempts=5)
    def send_mail(message: Message[Order]) -> None: ...

    app.stream_outbox()
    app.keep()

Declaring costs nothing and connects to nothing. ``headwater run module:app`` runs it, or
``app.run()``; inside another program, ``app.lifespan``, ``app.run_async`` or ``app.start``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from headwater.app.part_kinds import (
    AppJobs,
    AppliedFrom,
    Backoff,
    ConsumerPart,
    MessagesFrom,
    SourceKind,
    StreamerPart,
    WorkerPart,
)
from headwater.app.parts import Fault, Part, Places, Resources, chosen
from headwater.app.running import RunningApp, check_parts
from headwater.errors import InvalidInput
from headwater.kernel.codecs import Value, ValueCodec
from headwater.kernel.inputs import Span
from headwater.log.types import Message, TopicMessage
from headwater.queue.types import Delivery
from headwater.timed.jobs import Job, JobOptions

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from headwater.kernel.inputs import Limits
    from headwater.log.handles import Start
    from headwater.log.topics import TopicStart
    from headwater.outbox.consumer_letters import ConsumerRedriven
    from headwater.outbox.plan import ConsumerOptions


M = TypeVar("M")
R = TypeVar("R")
H = TypeVar("H", bound="Callable[[Any, Any], object]")


class HandlerOf(Protocol[M]):
    """Takes a handler of such messages, plain or async, and returns it as it is."""

    def __call__(self, handler: Callable[[M], R], /) -> Callable[[M], R]:
        """Declare the handler."""


class BatchHandlerOf(Protocol):
    """Takes a handler of a connection and a list of messages, and returns it as it is."""

    def __call__(self, handler: H, /) -> H:
        """Declare the handler."""


class WorkerDeclaration(TypedDict, total=False):
    """What may be said of any worker: options of Worker or QueueWorker, and of its part.

    ``name`` is that of the handler unless it is given. With ``processes`` the part runs in so many
    processes of its own. Spans of time may be texts, as "30s".
    """

    name: str
    processes: int | None
    concurrency: int
    ack_ms: Span
    max_attempts: int | None
    timeout: Span
    backoff: Backoff
    backoff_ms: Span
    longest_backoff_ms: Span
    limits: Limits


class GroupDeclaration(WorkerDeclaration, total=False):
    """What may be said of the worker of a stream."""

    start: Start
    max_pending: int
    dead_letters: bool | str
    expire_ms: Span
    ordered: bool


class TopicDeclaration(WorkerDeclaration, total=False):
    """What may be said of the worker of a topic."""

    partitions: int
    start: TopicStart
    max_pending: int
    dead_letters: bool | str
    expire_ms: Span
    ordered: bool


log = logging.getLogger("headwater.app")

# How long a check waits for a store of which no server answers.
_WAIT_MS = 10_000
_OF_PART = ("name", "processes")


class App(RunningApp):
    """The parts of an application: workers, consumers, timed jobs, the streamer, the housekeeper.

    ``store`` is the URL of the store, ``db`` that of the database, or an engine of SQLAlchemy.
    ``profile`` names a profile of headwater.toml for what is not given; without it, the environment
    decides, as for ``headwater.connect``.
    """

    def __init__(
        self,
        store: str | None = None,
        db: str | Engine | AsyncEngine | None = None,
        *,
        profile: str | None = None,
    ) -> None:
        super().__init__(Places(store, db, profile))
        self._timed = AppJobs(self)

    def __repr__(self) -> str:
        return f"App({', '.join(self._parts)})"

    def add(self, part: Part) -> None:
        """Add a part; raises InvalidInput when the application has one of its name."""
        if part.name in self._parts:
            raise InvalidInput(
                f"the application has a part {part.name!r} already; give name= to one of both"
            )
        self._parts[part.name] = part

    @overload
    def worker(
        self, *, stream: str, group: str, codec: None = None, **options: Unpack[GroupDeclaration]
    ) -> HandlerOf[Message]: ...
    @overload
    def worker(
        self,
        *,
        stream: str,
        group: str,
        codec: Literal["json"],
        **options: Unpack[GroupDeclaration],
    ) -> HandlerOf[Message[Any]]: ...
    @overload
    def worker(
        self,
        *,
        stream: str,
        group: str,
        codec: ValueCodec[Value],
        **options: Unpack[GroupDeclaration],
    ) -> HandlerOf[Message[Value]]: ...
    @overload
    def worker(
        self, *, topic: str, group: str, codec: None = None, **options: Unpack[TopicDeclaration]
    ) -> HandlerOf[TopicMessage]: ...
    @overload
    def worker(
        self,
        *,
        topic: str,
        group: str,
        codec: Literal["json"],
        **options: Unpack[TopicDeclaration],
    ) -> HandlerOf[TopicMessage[Any]]: ...
    @overload
    def worker(
        self,
        *,
        topic: str,
        group: str,
        codec: ValueCodec[Value],
        **options: Unpack[TopicDeclaration],
    ) -> HandlerOf[TopicMessage[Value]]: ...
    @overload
    def worker(
        self, *, queue: str, codec: None = None, **options: Unpack[WorkerDeclaration]
    ) -> HandlerOf[Delivery]: ...
    @overload
    def worker(
        self, *, queue: str, codec: Literal["json"], **options: Unpack[WorkerDeclaration]
    ) -> HandlerOf[Delivery[Any]]: ...
    @overload
    def worker(
        self, *, queue: str, codec: ValueCodec[Value], **options: Unpack[WorkerDeclaration]
    ) -> HandlerOf[Delivery[Value]]: ...
    def worker(
        self,
        *,
        stream: str | None = None,
        topic: str | None = None,
        queue: str | None = None,
        group: str | None = None,
        codec: Any = None,
        **options: Any,
    ) -> Any:
        """Declare a worker of a group of a stream or a topic, or of a queue.

        The function below it handles one message at a time, and may be async; it stays as it is.
        Options are those of Worker and QueueWorker, those of a group, ``partitions`` of a topic,
        ``name`` and ``processes``. ``timeout`` is how long a handler may run; ``backoff`` is
        "exponential", "fixed", "none" or the first pause; spans of time may be texts, as "30s".
        With ``max_attempts`` a group keeps dead
        letters. Raises InvalidInput and TypeError for what cannot be meant.
        """
        source = _source(stream, topic, queue, group, codec, options.pop("partitions", None))
        _check_options(source.kind, options)

        def declare(handler: Callable[[Any], object]) -> Callable[[Any], object]:
            own = {key: options[key] for key in options if key not in _OF_PART}
            name = options.get("name") or _name_of(handler)
            processes = options.get("processes")
            self.add(WorkerPart(name, source, handler, own, processes=processes))
            return handler

        return declare

    def consumer(
        self,
        name: str,
        *,
        stream: str | Sequence[str] | None = None,
        topic: str | None = None,
        codec: Any = None,
        **options: Unpack[ConsumerOptions],
    ) -> BatchHandlerOf:
        """Declare a consumer of streams or of a topic: each message has its effect in SQL once.

        The function below it is called with a connection and a list of messages, and may be async;
        it stays as it is. Options are those of Consumer. Raises InvalidInput.
        """
        if (stream is None) == (topic is None):
            raise InvalidInput("a consumer reads streams or a topic: give stream= or topic=")
        streams = () if stream is None else (stream,) if isinstance(stream, str) else tuple(stream)

        def declare(handler: H) -> H:
            self.add(ConsumerPart(name, AppliedFrom(streams, topic, codec), handler, options))
            return handler

        return declare

    def stream_outbox(
        self, *, name: str = "outbox", batch: int = 1000, id_header: bool = False
    ) -> None:
        """Declare the streamer, which brings what transactions staged to the log."""
        self.add(StreamerPart(name, {"batch": batch, "id_header": id_header}))

    def keep(self, *, name: str = "keep", every: Span = 10_000) -> None:
        """Declare the housekeeper, which does what ``headwater keep`` does, so often."""
        from headwater.app.part_kinds import KeeperPart

        self.add(KeeperPart(name, every))

    def every(self, interval: Span, **options: Unpack[JobOptions]) -> Callable[[Job], Job]:
        """Run the function below at each multiple of an interval since 1970; it may be async.

        Each run happens once among all processes that run the application. Options are those of
        TimedRunner. Raises InvalidInput.
        """
        return self._timed.every(interval, **options)

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[JobOptions]
    ) -> Callable[[Job], Job]:
        """Run the function below when a cron expression matches in a time zone; it may be async.

        Each run happens once among all processes that run the application. Options are those of
        TimedRunner. Raises InvalidInput.
        """
        return self._timed.cron(expression, tz=tz, **options)

    def check(self, *, only: Iterable[str] = (), without: Iterable[str] = ()) -> list[Fault]:
        """Return all that is wrong with the parts, before they run; changes nothing.

        It asks the store and the database. Raises InvalidInput for a name that no part has.
        """
        resources = Resources(self.places, wait_ms=_WAIT_MS)
        try:
            return check_parts(chosen(self._parts.values(), only, without), resources)
        finally:
            resources.close()


def _source(
    stream: str | None,
    topic: str | None,
    queue: str | None,
    group: str | None,
    codec: Any,
    partitions: int | None,
) -> MessagesFrom:
    given: dict[SourceKind, str | None] = {"stream": stream, "topic": topic, "queue": queue}
    named = [(kind, name) for kind, name in given.items() if name is not None]
    if len(named) != 1:
        raise InvalidInput("a worker has one source: give stream=, topic= or queue=")
    kind, name = named[0]
    if kind == "queue" and group is not None:
        raise InvalidInput("a queue has no groups; leave group= out")
    if kind != "queue" and group is None:
        raise InvalidInput(f"a worker of a {kind} is a member of a group; give group=")
    if kind != "topic" and partitions is not None:
        raise InvalidInput("only a topic has partitions; leave partitions= out")
    return MessagesFrom(kind, name, group, codec, partitions)


def _check_options(kind: SourceKind, options: Iterable[str]) -> None:
    """Raise TypeError for an option that neither the worker nor its part has."""
    from headwater.workers.queue_worker import QueueWorker
    from headwater.workers.sources import check_options
    from headwater.workers.worker import Worker

    own = (*_OF_PART, "backoff", "timeout")
    if kind == "queue":
        check_options(QueueWorker, [name for name in options if name not in own])
    else:
        known = (*own, "start", "max_pending", "dead_letters")
        check_options(Worker, [name for name in options if name not in known])


def _name_of(handler: Any) -> str:
    name = getattr(inspect.unwrap(handler), "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise InvalidInput(f"{handler!r} has no name; give name=")
    return name


def load_app(target: str) -> App:
    """Import a module, from the working directory too, and return the App of that name in it.

    Without a name it is ``app``. Raises InvalidInput, also for whatever the import raises.
    """
    module_name, _, name = target.partition(":")
    module = _imported(module_name, target)
    found = module
    for step in (name or "app").split("."):
        found = getattr(found, step, None)
    if isinstance(found, App):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    hint = f"did you mean {module_name}:{apps[0]}?" if apps else "write app = headwater.App() there"
    raise InvalidInput(f"{target!r} names no App; {hint}")


def _imported(name: str, target: str) -> Any:
    if not name or not all(step.isidentifier() for step in name.split(".")):
        raise InvalidInput(
            f"{target!r} is not a module and a name; write module:app, as in shop.jobs:app"
        )
    if name.endswith(".py"):
        app = target.partition(":")[2] or "app"
        raise InvalidInput(f"{name!r} is a file; write {name.removesuffix('.py')}:{app}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name) if _is_there(name) else None
    except Exception as error:
        raise InvalidInput(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if module is None:
        raise InvalidInput(
            f"there is no module {name!r} in {here} or among what is installed; check the name, or "
            "change to the directory of the module"
        )
    return module


def _is_there(name: str) -> bool:
    """Return whether there is such a module; whatever it lies in is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        # It lies in nothing, or in a module that is not a package.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return False
        raise


def redrive_letters(
    app: App, consumer: str, store: str | None = None, db: str | None = None
) -> ConsumerRedriven:
    """Have a consumer of an application handle its dead letters again; see Consumer.redrive.

    ``store`` and ``db`` take the place of those that the application names. Raises InvalidInput
    for a consumer that it does not have.
    """
    part = app.parts.get(consumer)
    if not isinstance(part, ConsumerPart):
        known = [name for name, one in app.parts.items() if isinstance(one, ConsumerPart)]
        there = f"it has {', '.join(known)}" if known else "it declares none"
        raise InvalidInput(f"the application has no consumer {consumer!r}; {there}")
    given = {"store": store, "db": db}
    places = replace(app.places, **{k: v for k, v in given.items() if v is not None})
    resources = app.resources = Resources(places)
    try:
        if part.is_async:
            return asyncio.run(_in_loop(part, resources))
        work: Any = part.open(resources)
        done: ConsumerRedriven = work.redrive()
        return done
    finally:
        app.resources = None
        resources.close()


async def _in_loop(part: ConsumerPart, resources: Resources) -> ConsumerRedriven:
    try:
        await resources.open_async()
        work: Any = part.open(resources)
        done: ConsumerRedriven = await work.redrive()
        return done
    finally:
        await resources.close_async()
