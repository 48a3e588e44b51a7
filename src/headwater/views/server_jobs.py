"""Views of the jobs that servers run: what each does, and how far it is."""

from __future__ import annotations

from typing import Any

from headwater.store.presence import ServerJob
from headwater.views.record import View, mirror
from headwater.whole_store.letters import LetterCount, LettersMoved

# So many places of a job are named; the others are counted.
_NAMED = 3


class ServerJobView(View, frozen=True, kw_only=True):
    """A job of a server: ``done`` of ``total``, which is null when that is not known before."""

    job: str
    kind: str
    state: str
    who: str
    what: str
    done: int
    total: int | None
    error: str | None
    noted_ms: int

    @classmethod
    def of(cls, job: ServerJob) -> ServerJobView:
        """Return the view of a job."""
        what, done, total = _described(job.kind, job.details)
        return cls(
            job=job.id,
            kind=job.kind,
            state=job.state,
            who=job.who,
            what=what,
            done=done,
            total=total,
            error=job.details.get("error"),
            noted_ms=job.noted_ms,
        )


LetterCountView = mirror("LetterCountView", LetterCount)
LettersMovedView = mirror("LettersMovedView", LettersMoved)


def _described(kind: str, facts: dict[str, Any]) -> tuple[str, int, int | None]:
    """Return what a job does, how much is done, and of how much."""
    if kind == "letters":
        where = "all groups and queues" if facts.get("everywhere") else _places(facts)
        what = f"{facts.get('action', 'move')} dead letters of {where}"
        return what, int(facts.get("done", 0)), facts.get("total") or None
    if kind == "replay":
        first, last = int(facts.get("first", 0)), int(facts.get("last", 0))
        what = f"replay {first}-{last} of {facts.get('source')} into {facts.get('into')}"
        return what, max(int(facts.get("next", first)) - first, 0), max(last - first + 1, 0)
    if kind == "scrub":
        return f"{facts.get('what', 'scrub')} the store", int(facts.get("objects", 0)), None
    return kind, 0, None


def _places(facts: dict[str, Any]) -> str:
    named = [
        one["queue"] if one.get("queue") else f"{one.get('stream')} / {one.get('group')}"
        for one in facts.get("places", [])
    ]
    more = len(named) - _NAMED
    return ", ".join(named[:_NAMED]) + (f" and {more} more" if more > 0 else "")
