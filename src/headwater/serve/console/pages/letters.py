"""Dead letters of all groups and queues together, and the jobs that move them."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.kernel.declaring import Scope
from headwater.kernel.failures import LetterFilter
from headwater.serve.api.letter_jobs import may_see
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.letter_places import Letter, filter_of, look_for
from headwater.serve.console.links import query
from headwater.serve.console.pages.readers import consumers_with_letters

# How many letters one page looks at, for how long it looks for them, and how many it shows.
LOOKED_AT: Final = 2000
_SECONDS: Final = 0.15
_SHOWN: Final = 50
_JOBS: Final = 10
_FILTERS: Final = ("place", "tag", "error", "min_attempts", "after", "before")


class ErrorRow(NamedTuple):
    """How many letters failed alike, and when the newest of them; ``link`` shows them."""

    words: str
    letters: int
    newest_ms: int
    link: str | None


async def show_dead(call: PageCall) -> Context:
    """Show the dead letters of all groups and queues together, those that were read newest first.

    A page reads some of them, of each place the newest first, and says how many it has not read.
    """
    matching = filter_of(call)
    found = await look_for(call, matching, LOOKED_AT, _SECONDS, call.query.get("go", ""))
    letters = sorted(found.letters, key=lambda one: -one.buried_ms)
    here = call.query.get("go", "")
    start = max(call.number("from", 0) or 0, 0)
    jobs = [
        job
        for job in await call.served.jobs.letters.known()
        if may_see(call.grant, Scope.READ, job)
    ]
    return {
        "of_consumers": await consumers_with_letters(call),
        "has_database": call.served.database is not None,
        "errors": _errors(call, letters),
        "letters": letters[start : start + _SHOWN],
        "start": start,
        "fitting": len(letters),
        "looked": found.looked,
        "more": bool(found.go),
        "holders": found.holders,
        "of": found.of,
        "places": sorted(found.places, key=lambda place: -place.dead),
        "chosen": call.query.get("place", ""),
        "filtered": matching != LetterFilter(),
        "total": sum(place.dead for place in found.places),
        "newer": _link(call, go=here, **{"from": max(start - _SHOWN, 0)}) if start else None,
        "older": _link(call, go=here, **{"from": start + _SHOWN})
        if start + _SHOWN < len(letters)
        else None,
        "go_on": _link(call, go=found.go) if found.go else None,
        "resumed": bool(here),
        "begin": _link(call),
        "jobs": jobs[:_JOBS],
        "may_admin": not call.read_only and call.grant.widest is Scope.ADMIN,
    }


def _errors(call: PageCall, letters: list[Letter]) -> list[ErrorRow]:
    """Return the errors of letters, which are sorted by time, the most frequent first."""
    alike: dict[str, list[Letter]] = {}
    for one in letters:
        alike.setdefault("" if one.cause is None else one.cause.pattern, []).append(one)
    found = []
    for pattern, some in sorted(alike.items(), key=lambda row: -len(row[1])):
        cause = some[0].cause
        # A text that is part of nothing would fit everything.
        link = _link(call, error=cause.constant) if cause and cause.constant else None
        words = pattern or "no error reported"
        found.append(ErrorRow(words, len(some), some[0].buried_ms, link))
    return found


def _link(call: PageCall, **words: object) -> str:
    """Return the query of another part of the same list."""
    kept = {name: value for name in _FILTERS if (value := call.query.get(name))}
    return query(**(kept | words))
