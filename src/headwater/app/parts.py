"""The seam between an application and what it runs: a part, and the work that it opens.

A part is a declaration: its name, what it needs, how it is checked, and how its work is opened. The
work is what runs until it is asked to stop; it is opened again each time the part is started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from headwater.app.resources import Resources
from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int, check_name

Need: TypeAlias = Literal["store", "db"]
MAX_PROCESSES: Final = 64


class Fault(NamedTuple):
    """Something that a check found; one that is not ``fatal`` is logged, and the part runs."""

    part: str
    what: str
    fatal: bool = True

    def __str__(self) -> str:
        return f"{self.part}: {self.what}"


class PartCounts(NamedTuple):
    """What a part has done: messages, rows or runs that are done, and attempts that failed.

    ``stuck`` threads run a handler past its time now; only a new process is rid of them.
    """

    done: int = 0
    failed: int = 0
    stuck: int = 0

    def plus(self, other: PartCounts) -> PartCounts:
        """Return the sum of both."""
        return PartCounts(*(one + another for one, another in zip(self, other, strict=True)))


class Work(Protocol):
    """What a part runs. The ``run`` of an async part returns a coroutine."""

    def run(self) -> Any:
        """Work until ``stop``; whatever it raises ends the work, and the part is restarted."""

    def stop(self) -> None:
        """Ask ``run`` to end when what is begun is done; from any thread."""


class Part(ABC):
    """One part of an application.

    ``object`` names what it works on, for logs and views. An ``is_async`` part runs on the event
    loop of its process, any other in a thread. A part that is ``spread`` runs in each process of an
    application, any other in one of them; with ``processes`` it runs in that many of its own.
    """

    kind: ClassVar[str]
    needs: ClassVar[frozenset[Need]] = frozenset({"store"})

    def __init__(
        self,
        name: str,
        object: str,
        *,
        is_async: bool = False,
        spread: bool = False,
        processes: int | None = None,
    ) -> None:
        self.name = check_name(name, "part")
        self.object = object
        self.is_async = is_async
        self.spread = spread
        self.processes = processes
        if processes is not None:
            check_int(processes, "processes", 1, MAX_PROCESSES)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.object!r})"

    @abstractmethod
    def check(self, resources: Resources) -> Iterable[Fault]:
        """Return what is wrong with the part before it runs; may ask the store and the database.

        It changes nothing there. Errors of the store or the database may be raised: they are
        listed as faults.
        """

    @abstractmethod
    def open(self, resources: Resources) -> Work:
        """Return the work of the part, ready to run; of an async part, in the event loop."""

    def counts(self, work: Any) -> PartCounts:  # noqa: ARG002  a part may count nothing
        """Return what the work has done since it was opened."""
        return PartCounts()

    def give_back(self, work: Any) -> int:  # noqa: ARG002  a part may hold nothing
        """Return what the work still holds, as its process ends; returns how many messages."""
        return 0

    def lag(self, resources: Resources) -> int | None:  # noqa: ARG002
        """Return how much waits for the part; None when it cannot be counted."""
        return None


def chosen(parts: Iterable[Part], only: Iterable[str], without: Iterable[str]) -> list[Part]:
    """Return the parts that are named by ``only``, or all, but for those of ``without``.

    Raises InvalidInput for a name that no part has.
    """
    by_name = {part.name: part for part in parts}
    wanted, unwanted = list(only), set(without)
    for name in (*wanted, *unwanted):
        if name not in by_name:
            raise InvalidInput(
                f"the application has no part {name!r}; it has {', '.join(by_name) or 'none'}"
            )
    return [
        by_name[name] for name in by_name if name in (wanted or by_name) and name not in unwanted
    ]
