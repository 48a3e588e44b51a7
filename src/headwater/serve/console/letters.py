"""Dead letters of all groups and queues in the console: a page, and what is done to them there.

A page looks at some letters, of each place the newest first. An action redrives or discards one,
some, or all that match, by a job of the server; it can be undone until that begins, and stopped.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from headwater.doors.catalogue import GROUP, QUEUE
from headwater.errors import InvalidInput, UnknownGroup
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import Cause, LetterFilter
from headwater.kernel.headers import LIST_BYTES, bytes_of
from headwater.metrics.alarms import ConsumerLetterCount, consumer_letters
from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.links import Place, query
from headwater.serve.console.render import number
from headwater.serve.console.ruler import moment_of
from headwater.serve.console.spelling import command, python
from headwater.serve.console.values import cut
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.letters import LetterSweep, SweepPlace, may_see
from headwater.views.outboxes import consumer_places
from headwater.whole_store.letters import count_letters, letter_box

# How many letters one page looks at, for how long it looks for them, and how many it shows.
LOOKED_AT: Final = 2000
_SECONDS: Final = 0.15
_SHOWN: Final = 50
_JOBS: Final = 10
_FILTERS: Final = ("place", "tag", "error", "min_attempts", "after", "before")
_PAGE: Final = 1000
# A page looks at many letters and shows few: of a larger value it keeps the beginning.
_KEPT_BYTES: Final = 16 * 1024
_LOOKED_BYTES: Final = 64 << 20
# A job waits so long before it begins: until then it can be taken back.
GRACE_MS: Final = 30_000
# So many letters are looked at to count those that match.
_COUNTED: Final = 20_000
# ... and for so long at most.
_COUNTED_S: Final = 1.0
# What a request names at most.
_MOST_PLACES: Final = 1000


class Letter(NamedTuple):
    """A message that a group or a queue gave up, and where it lies.

    ``id`` is its offset in the stream, or its id in the queue.
    """

    place: Place
    id: str
    tag: str
    attempts: int
    cause: Cause | None
    buried_ms: int
    value: bytes


# ── Looking at letters ────────────────────────────────────────────────────────────────────────────


class LettersSeen(NamedTuple):
    """Letters that fit, out of some places, and how much was looked at for that.

    ``holders`` of ``of`` streams and queues lie behind. ``go`` is where to go on, if anything is
    left.
    """

    letters: list[Letter]
    places: list[Place]
    looked: int
    holders: int
    of: int
    go: str


def place_of_key(key: str) -> Place:
    """Return the place that a form names; raises InvalidInput."""
    kind, _, rest = key.partition(":")
    parts = [unquote(one) for one in rest.split("/")]
    if all(parts) and (kind, len(parts)) == ("g", 2):
        return Place(parts[0], parts[1])
    if all(parts) and (kind, len(parts)) == ("q", 1):
        return Place(parts[0], "")
    raise InvalidInput(f"{key!r} names no place of dead letters; use a button of the console")


def filter_of(call: PageCall) -> LetterFilter:
    """Return the filter that a form asks for; raises InvalidInput."""
    return LetterFilter(
        call.query.get("tag") or None,
        call.query.get("error") or None,
        call.number("min_attempts"),
        _ms(call, "after"),
        _ms(call, "before"),
    )


def _ms(call: PageCall, name: str) -> int | None:
    """Return a time of a form: ISO 8601, UTC without a zone, or a span before now like 2h."""
    text = call.query.get(name, "").strip()
    if not text:
        return None
    moment = moment_of(text)
    if moment is None:
        raise InvalidInput(
            f"{name} is a time like 2026-11-17T14:00, or a span before now like 2h, not {text!r}"
        )
    return int(moment.timestamp() * 1000)


async def look_for(
    call: PageCall, matching: LetterFilter, budget: int, seconds: float, go: str = ""
) -> LettersSeen:
    """Return letters that fit, of all places or of the chosen one, from where ``go`` says on.

    Places come one after the other, and of each its newest letters first. It ends when it has
    looked at ``budget`` letters, or after so many seconds, and says where to go on.
    """
    after, at = _read_cursor(go)
    started = [] if not at else [Place(after.name, after.group)]
    if chosen := call.query.get("place", ""):
        place = place_of_key(chosen)
        call.check(place.name)
        place = await _counted(call, place)
        seen = await _look_at_one(call, place, matching, budget, at)
        go = _cursor(place.place, seen.at)
        return LettersSeen(seen.letters, [place], seen.looked, 1, 1, go if seen.at else "")
    sweep = LetterSweep(call.hw, lambda name: call.grant.allows(Scope.READ, name), after)
    until = time.monotonic() + seconds
    letters: list[Letter] = []
    places: list[Place] = []
    looked, go = 0, ""
    waiting = [await _counted(call, place) for place in started]
    while not go and (waiting or not sweep.over):
        for place in waiting:
            found = await _look_at_one(call, place, matching, budget - looked, at)
            at = ""
            letters, looked = letters + found.letters, looked + found.looked
            places.append(place)
            if found.at or looked >= budget or time.monotonic() > until:
                go = _cursor(place.place, found.at)
                break
        else:
            waiting = [Place(*one) for one in await sweep.more()] if not sweep.over else []
            if not waiting and time.monotonic() > until and not sweep.over:
                go = _cursor(sweep.reached, "")
    return LettersSeen(letters, places, looked, sweep.looked, sweep.total, go)


async def _counted(call: PageCall, place: Place) -> Place:
    """Return a place with how many letters it has."""
    return Place(place.name, place.group, await call.hw.store.run(count_letters(*place[:2])))


def _cursor(place: SweepPlace, at: str) -> str:
    """Return where to go on as addresses spell it: in a place from ``at`` on, or behind it."""
    return "/".join((*(quote(word, safe="") for word in place), quote(at, "", "latin-1")))


def _read_cursor(text: str) -> tuple[SweepPlace, str]:
    """Return where to go on; raises InvalidInput."""
    if not text:
        return SweepPlace(), ""
    *words, at = text.split("/")
    place = [unquote(word) for word in words]
    if len(place) != 3 or place[0] not in ("s", "q") or not place[1]:
        raise InvalidInput(f"{text!r} is no place to go on from; use a link of the console")
    return SweepPlace(*place), unquote(at, "latin-1")


class _SeenInPlace(NamedTuple):
    """Letters of one place that fit; ``at`` is where to go on in it, empty at its end."""

    letters: list[Letter]
    looked: int
    at: str


async def _look_at_one(
    call: PageCall, place: Place, matching: LetterFilter, budget: int, begin: str
) -> _SeenInPlace:
    """Look at letters of a place, the newest first, up to so many of them, or 64 MiB."""
    letters: list[Letter] = []
    box = letter_box(place.name, place.group)
    looked, room = 0, _LOOKED_BYTES
    at: str | None = begin
    while at is not None and looked < budget and room > 0:
        count = min(budget - looked, _PAGE)
        try:
            page = await call.hw.store.run(box.page(at, count, LIST_BYTES, newest=True))
        except UnknownGroup:
            return _SeenInPlace(letters, looked, "")
        looked, at = looked + len(page.letters), page.place
        room -= bytes_of(page.letters)
        letters += [
            Letter(place, *box.facts(letter), cut(letter.value, _KEPT_BYTES))
            for letter in box.fitting(page.letters, matching)
        ]
    return _SeenInPlace(letters, looked, at or "")


# ── The page ──────────────────────────────────────────────────────────────────────────────────────


class ErrorRow(NamedTuple):
    """How many letters failed alike, and when the newest of them; ``link`` shows them."""

    words: str
    letters: int
    newest_ms: int
    link: str | None


@page("/dead", "dead.html", "Dead letters")
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


# ── Actions ───────────────────────────────────────────────────────────────────────────────────────


async def move_letters(call: PageCall) -> Action:
    """Redrive or discard dead letters: those that are ticked, or all that match."""
    word = given(call, "action")
    if word not in ("redrive", "discard"):
        raise InvalidInput("action is redrive or discard")
    matching = filter_of(call)
    for name, moment in (("after", matching.after_ms), ("before", matching.before_ms)):
        if moment is not None:
            # What is agreed to is a moment, not a span before it.
            call.query[name] = _time(moment)
    named = _named(call)
    if call.query.get("which") == "some" and not named:
        raise InvalidInput(
            "no dead letter is selected; go back and select some, or choose all that match"
        )
    if named:
        found = _Meant({place: len(ids) for place, ids in named.items()})
    else:
        found = await _matched(call, matching)
    places = sorted(found.counts, key=lambda place: place.key)
    if not places and not found.rest:
        raise InvalidInput("no dead letter matches; there is nothing to do")
    for place in places:
        if not call.may(Scope.ADMIN, place.name):
            raise Refused(403, f"you may not change the dead letters of {place.words}")
    rate = call.number("rate")
    body: dict[str, Any] = {"action": word, "delay_ms": GRACE_MS}
    if found.everywhere:
        body["everywhere"] = True
    else:
        body["places"] = [_place_body(place, named.get(place)) for place in places]
    if not named and matching != LetterFilter():
        body["matching"] = _spelled(matching)
    if rate:
        body["rate_per_s"] = rate
    total = sum(found.counts.values())
    at_least = bool(found.rest)
    together = not named and not call.query.get("place")
    chosen = None if together else {place: named.get(place) for place in places}
    cli, program = _commands(call, word, chosen, matching, rate)
    letters = f"{number(total)} dead {'letter' if total == 1 else 'letters'}"
    return Action(
        title=f"{word.title()} {'at least ' if at_least else ''}{letters}",
        scope=Scope.ADMIN,
        name=places[0].name if places else _widest(call),
        bill=list(_bill(word, places, found, rate)),
        method="POST",
        path="/v1/letters/jobs",
        body=body,
        cli=cli,
        python=program,
        back="/dead",
        careful=word == "discard",
        # How many were counted in time says nothing of how many there are.
        counts=() if at_least else (total,),
        is_job=True,
    )


def _widest(call: PageCall) -> str:
    """Return a pattern of names that the client may administer, if there is one."""
    return next(iter(call.grant.patterns(Scope.ADMIN)), "")


def _named(call: PageCall) -> dict[Place, list[str]]:
    """Return the letters that are ticked, by place: fields ``l...`` of the form."""
    found: dict[Place, list[str]] = {}
    if call.query.get("which") == "all":
        return found
    for field, value in call.query.items():
        if field[:1] == "l" and field[1:].isdecimal():
            key, _, letter = value.partition("#")
            if not (letter.isascii() and letter.isdecimal()):
                raise InvalidInput(f"{value!r} names no dead letter; use a button of the console")
            found.setdefault(place_of_key(key), []).append(letter)
    return found


class _Meant(NamedTuple):
    """How many letters are meant in each place; ``rest`` says what was not counted, if anything."""

    counts: dict[Place, int]
    rest: str = ""
    everywhere: bool = False


async def _matched(call: PageCall, matching: LetterFilter) -> _Meant:
    """Return the places with letters that match, and how many in each, as far as was counted."""
    chosen = bool(call.query.get("place"))
    found = await look_for(call, matching, _COUNTED, _COUNTED_S)
    counts: dict[Place, int] = dict.fromkeys(found.places, 0) if found.go else {}
    for letter in found.letters:
        counts[letter.place] = counts.get(letter.place, 0) + 1
    if matching.tag is not None:
        # A message of a queue has no tag.
        counts = {place: count for place, count in counts.items() if place.group}
    if matching == LetterFilter():
        counts = {place: place.dead for place in found.places}
        if chosen:
            return _Meant(counts)
    rest = ""
    if found.go:
        where = f" in {number(found.holders)} of {number(found.of)} streams and queues"
        rest = f"{number(found.looked)} letters{'' if chosen else where} were checked"
    return _Meant(counts, rest, not chosen and (bool(found.go) or len(counts) > _MOST_PLACES))


def _bill(word: str, places: list[Place], found: _Meant, rate: int | None) -> Iterator[str]:
    counts, at_least = found.counts, bool(found.rest)
    for place in places[:20]:
        yield f"{place.words}: {'at least ' if at_least else ''}{number(counts[place])}"
    if len(places) > 20:
        yield f"and {len(places) - 20} more groups and queues."
    if found.everywhere:
        yield "This covers all groups and queues that you may change."
    if at_least:
        yield f"{found.rest}; the job checks the rest as it reaches them."
    if word == "redrive":
        yield (
            "They are delivered again, and their attempts are counted from zero. Dead letters "
            "whose messages were evicted stay."
        )
    else:
        yield (
            "They cannot be redriven afterwards. Those of a group can still be read in the stream "
            "of its dead letters until its retention removes them; those of a queue are gone."
        )
    if rate:
        seconds = sum(counts.values()) / rate
        yield f"At {number(rate)}/s that takes about {number(max(round(seconds), 1))} s."
    yield (
        f"It starts {GRACE_MS // 1000} s after you confirm; until then you can undo it. After that "
        "you can stop it: what is done stays done. If this server stops, another one continues."
    )


def _place_body(place: Place, letters: list[str] | None) -> dict[str, Any]:
    if place.group:
        spelled: dict[str, Any] = {"stream": place.name, "group": place.group}
        if letters is not None:
            spelled["offsets"] = [int(one) for one in letters]
        return spelled
    return {"queue": place.name} | ({} if letters is None else {"ids": letters})


def _spelled(matching: LetterFilter) -> dict[str, Any]:
    names = ("tag", "error", "min_attempts", "after_ms", "before_ms")
    return {name: value for name in names if (value := getattr(matching, name)) is not None}


def _time(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat()


def _commands(
    call: PageCall,
    word: str,
    places: dict[Place, list[str] | None] | None,
    matching: LetterFilter,
    rate: int | None,
) -> tuple[str, str]:
    """Return the same as a line for a shell and as Python; without places, for all of them."""
    fitting: dict[str, Any] = _spelled(matching)
    typed = {name: _time(ms) for name, ms in fitting.items() if name.endswith("_ms")}
    paced = {} if rate is None else {"rate": rate}
    if places is None:
        # The patterns of names that the client may change; none stand for all.
        grant = call.grant
        names = () if grant.everywhere(Scope.ADMIN) else grant.patterns(Scope.ADMIN)
        operation = GROUP.operation(word, asyncio=True)
        # All options are those of one group.
        _, _, options = command(operation, [], fitting | typed | paced).partition(f" {word}")
        _, _, arguments = python(operation, ["", ""], fitting | paced).partition(f".{word}(")
        given = ", ".join([*map(repr, names), arguments.removesuffix(")")]).removesuffix(", ")
        return f"{cli_words('letters', word, *names)}{options}", f"hw.{word}_everywhere({given})"
    lines, calls = [], []
    for place, letters in places.items():
        operation = (GROUP if place.group else QUEUE).operation(word, asyncio=True)
        names = (place.name, place.group) if place.group else (place.name,)
        chosen: dict[str, Any] = fitting
        if letters is not None:
            chosen = {"offsets": list(map(int, letters))} if place.group else {"ids": letters}
        lines.append(command(operation, names, chosen | (typed if letters is None else {}) | paced))
        calls.append(python(operation, names, chosen | paced))
    return " && ".join(lines), "\n".join(calls)


async def stop_letters(call: PageCall) -> Action:
    """Stop a job on dead letters, or take it back before it begins."""
    job = given(call, "job")
    found = [one for one in await call.served.jobs.letters.known() if one.job == job]
    if not found:
        raise InvalidInput("there is no such job; it may have ended long ago")
    waiting = found[0].state == "waiting"
    names = [place.name for place in found[0].places] or [_widest(call)]
    refused = next((name for name in names if not call.may(Scope.ADMIN, name)), names[0])
    return Action(
        title=f"{'Undo' if waiting else 'Stop'} the {found[0].action} of dead letters",
        scope=Scope.ADMIN,
        name=refused,
        bill=[
            "It has not started: no dead letter is changed."
            if waiting
            else f"{number(found[0].done)} dead letters are done and stay done; the others stay."
        ],
        method="POST",
        path="/v1/letters/stop",
        body={"job": job},
        cli=cli_words("job", "stop", job),
        python=f"hw.stop_job({job!r})",
        back="/dead",
    )


async def consumers_with_letters(call: PageCall) -> list[ConsumerLetterCount]:
    """Return what SQL consumers gave up, as far as the client may see it.

    A server without a database knows the consumers that are noted in the store.
    """
    if call.served.database is None:
        known = consumer_letters(call.served.watched.sweeps.latest)
        return [one for one in known if call.grant.allows(Scope.READ, one.consumer)]
    there = (await call.served.database.status()).checkpoints
    seen = [one for one in there if call.grant.allows(Scope.READ, one.consumer)]
    return [
        ConsumerLetterCount(one.checkpoint.consumer, one.checkpoint.stream, one.dead, one.letters)
        for one in await call.hw.store.run(consumer_places(seen))
        if one.dead
    ]
