"""The check before an application runs: one list of everything that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.app.parts import Fault, Part
from headwater.app.resources import Resources
from headwater.errors import AppRefused, HeadwaterError


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
    return list(dict.fromkeys(faults))


def refuse_faults(faults: Sequence[Fault]) -> None:
    """Raise AppRefused when one of the faults is fatal."""
    fatal = [str(fault) for fault in faults if fault.fatal]
    if fatal:
        raise AppRefused(fatal)
