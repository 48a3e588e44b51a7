"""The check before an application runs: one list of everything that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.app.parts import Fault, Part
from headwater.app.resources import Resources
from headwater.app.worker_part import WorkerPart
from headwater.errors import AppRefused, HeadwaterError
from headwater.kernel.inputs import Limits


def check_parts(parts: Sequence[Part], resources: Resources) -> list[Fault]:
    """Return all that is wrong with parts, and what they should know; changes nothing.

    A store or a database that cannot be used is named once, and its parts are not asked.
    """
    faults: list[Fault] = []
    if not parts:
        faults.append(Fault("application", "it has no parts; declare one, as with @app.worker"))
    broken = set[str]()
    for need, use in (("store", lambda: resources.hw), ("db", lambda: resources.engine)):
        needing = [part for part in parts if need in part.needs]
        # The engine of an async handler may have no twin for threads.
        if needing and not (need == "db" and all(part.is_async for part in needing)):
            try:
                use()
            except HeadwaterError as error:
                broken.add(need)
                faults.append(Fault(need, str(error)))
    for part in parts:
        if not broken & part.needs:
            try:
                faults += part.check(resources)
            except HeadwaterError as error:
                faults.append(Fault(part.name, str(error)))
    faults += _conflicting_limits(parts)
    return list(dict.fromkeys(faults))


def _conflicting_limits(parts: Sequence[Part]) -> Iterator[Fault]:
    """Name workers that declare different limits of one group or queue, which has only one."""
    declared: dict[tuple[str, str], tuple[str, Limits]] = {}
    for part in parts:
        limits = part.options.get("limits") if isinstance(part, WorkerPart) else None
        if not isinstance(part, WorkerPart) or limits is None:
            continue
        other, theirs = declared.setdefault((part.source.kind, part.object), (part.name, limits))
        if theirs != limits:
            yield Fault(
                part.name,
                f"it declares the limits {limits} of {part.source.kind} {part.object}, and {other} "
                f"declares {theirs}; all workers of a group or queue share its limits: give both "
                "the same",
            )


def refuse_faults(faults: Sequence[Fault]) -> None:
    """Raise AppRefused when one of the faults is fatal."""
    fatal = [str(fault) for fault in faults if fault.fatal]
    if fatal:
        raise AppRefused(fatal)
