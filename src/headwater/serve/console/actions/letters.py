"""Actions on dead letters: redrive or discard one, some, or all that match; stop such a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import LetterFilter
from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.letter_places import (
    Place,
    filter_of,
    look_for,
    place_of_key,
)
from headwater.serve.console.render import number
from headwater.serve.http.messages import Refused

# A job waits so long before it begins: until then it can be taken back.
GRACE_MS: Final = 30_000
# So many letters are looked at to count those that match.
_COUNTED: Final = 20_000
# ... and for so long at most.
_COUNTED_S: Final = 1.0
# What a request names at most.
_MOST_PLACES: Final = 1000


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
    # A message of a queue has no tag.
    fitting = (place for place in found.counts if place.group or matching.tag is None)
    places = sorted(fitting, key=lambda place: place.key)
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
    letters = f"{number(total)} dead {'letter' if total == 1 else 'letters'}"
    return Action(
        title=f"{word.title()} {'at least ' if at_least else ''}{letters}",
        scope=Scope.ADMIN,
        name=places[0].name if places else _widest(call),
        bill=list(_bill(word, places, found, rate)),
        method="POST",
        path="/v1/letters/jobs",
        body=body,
        cli=_cli_everywhere(call, word, matching, rate)
        if together
        else " && ".join(_cli(word, one, named.get(one), matching, rate) for one in places),
        python=_python_everywhere(call, word, matching, rate)
        if together
        else "\n".join(_python(word, one, named.get(one), matching, rate) for one in places),
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


def _cli(
    word: str, place: Place, letters: list[str] | None, matching: LetterFilter, rate: int | None
) -> str:
    words: list[object] = ["stream", word, place.name, place.group]
    if not place.group:
        words = ["queue", word, place.name]
    words += _options(word, rate)
    if letters is not None:
        return cli_words(*words, *letters)
    return cli_words(*words, *_filter_options(matching))


def _options(word: str, rate: int | None) -> list[object]:
    return [*(["--rate", rate] if rate else []), *(["--yes"] if word == "discard" else [])]


def _filter_options(matching: LetterFilter) -> Iterator[object]:
    for name, value in _spelled(matching).items():
        yield f"--{name.removesuffix('_ms').replace('_', '-')}"
        yield _time(value) if name.endswith("_ms") else value


def _names(call: PageCall) -> tuple[str, ...]:
    """Return the patterns of names that the client may change; none stand for all."""
    grant = call.grant
    return () if grant.everywhere(Scope.ADMIN) else grant.patterns(Scope.ADMIN)


def _cli_everywhere(call: PageCall, word: str, matching: LetterFilter, rate: int | None) -> str:
    options = [*_options(word, rate), *_filter_options(matching)]
    return cli_words("letters", word, *_names(call), *options)


def _python_everywhere(call: PageCall, word: str, matching: LetterFilter, rate: int | None) -> str:
    words = [repr(name) for name in _names(call)]
    words += _arguments(matching, rate)
    return f"hw.{word}_everywhere({', '.join(words)})"


def _arguments(matching: LetterFilter, rate: int | None) -> Iterator[str]:
    if matching != LetterFilter():
        fields = ", ".join(f"{name}={value!r}" for name, value in _spelled(matching).items())
        yield f"matching=headwater.LetterFilter({fields})"
    if rate:
        yield f"rate_per_s={rate}"


def _python(
    word: str, place: Place, letters: list[str] | None, matching: LetterFilter, rate: int | None
) -> str:
    words = list(_arguments(matching if letters is None else LetterFilter(), rate))
    if letters is not None:
        chosen = f"[{', '.join(letters)}]" if place.group else repr(letters)
        words.insert(0, f"letters={chosen}")
    given = ", ".join(words)
    if place.group:
        return f"hw.stream({place.name!r}).group({place.group!r}).{word}({given})"
    return f"hw.queue({place.name!r}).{word}({given})"


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
