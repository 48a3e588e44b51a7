"""Dead letters of all groups and queues together, and the jobs that move them."""

from __future__ import annotations

from typing import Final

from headwater.failures import LetterFilter
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.letter_places import filter_of, find_places, look_at
from headwater.serve.console.pages.consumers import places_with_letters
from headwater.serve.console.render import query
from headwater.serve.tokens import Scope

# How many letters one page looks at, and how many it shows.
LOOKED_AT: Final = 2000
_SHOWN: Final = 50
_JOBS: Final = 10
_FILTERS: Final = ("place", "tag", "error", "min_attempts", "after", "before")


async def show_dead(call: PageCall) -> Context:
    """Show the dead letters of all groups and queues together, the newest first."""
    places = await find_places(call)
    chosen = call.query.get("place", "")
    wanted = [place for place in places if not chosen or place.key == chosen]
    matching = filter_of(call)
    found = await look_at(call, wanted, matching, LOOKED_AT)
    letters = sorted(found.letters, key=lambda one: -one.buried_ms)
    start = max(call.number("from", 0) or 0, 0)
    jobs = [
        job
        for job in await call.served.letter_jobs.known()
        if all(call.grant.allows(Scope.READ, place.name) for place in job.places)
    ]
    return {
        "of_consumers": await places_with_letters(call),
        "letters": letters[start : start + _SHOWN],
        "start": start,
        "fitting": len(letters),
        "looked": found.looked,
        "more": found.more,
        "places": places,
        "chosen": chosen,
        "filtered": matching != LetterFilter(),
        "total": sum(place.dead for place in wanted),
        "newer": _from(call, max(start - _SHOWN, 0)) if start else None,
        "older": _from(call, start + _SHOWN) if start + _SHOWN < len(letters) else None,
        "jobs": jobs[:_JOBS],
        "may_admin": not call.read_only and call.grant.widest is Scope.ADMIN,
    }


def _from(call: PageCall, start: int) -> str:
    """Return the query of another part of the same list."""
    kept = {name: value for name in _FILTERS if (value := call.query.get(name))}
    return query(**kept, **{"from": start})
