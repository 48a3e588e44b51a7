"""Actions on dead letters: redrive or discard one, some, or all that match; stop such a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from headwater.errors import InvalidInput
from headwater.failures import LetterFilter
from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.letter_places import (
    Looked,
    Place,
    filter_of,
    find_places,
    look_at,
    place_of_key,
)
from headwater.serve.console.render import number
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope

# A job waits so long before it begins: until then it can be taken back.
GRACE_MS: Final = 30_000
# So many letters are looked at to count those that match.
_COUNTED: Final = 20_000
_FORMS: Final = 5


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
        raise InvalidInput("no letter is ticked; go back and tick some, or choose all that match")
    if named:
        places = list(named)
        counts = {place: len(ids) for place, ids in named.items()}
        at_least = False
    else:
        places, counts, at_least = await _matched(call, matching)
    if not places:
        raise InvalidInput("no dead letter matches; there is nothing to do")
    places.sort(key=lambda place: place.key)
    for place in places:
        if not call.may(Scope.ADMIN, place.name):
            raise Refused(403, f"you may not change the dead letters of {place.words}")
    rate = call.number("rate")
    body: dict[str, Any] = {
        "action": word,
        "places": [_place_body(place, named.get(place)) for place in places],
        "delay_ms": GRACE_MS,
    }
    if not named and matching != LetterFilter():
        body["matching"] = _spelled(matching)
    if rate:
        body["rate_per_s"] = rate
    total = sum(counts.values())
    letters = f"{number(total)} {'letter' if total == 1 else 'letters'}"
    return Action(
        title=f"{word.title()} {'at least ' if at_least else ''}{letters}",
        scope=Scope.ADMIN,
        name=places[0].name,
        bill=list(_bill(word, places, counts, rate, at_least)),
        method="POST",
        path="/v1/letters/jobs",
        body=body,
        cli=" && ".join(_cli(word, one, named.get(one), matching) for one in places[:_FORMS]),
        python="; ".join(_python(word, one, named.get(one), matching) for one in places[:_FORMS]),
        back="/dead",
        careful=word == "discard",
    )


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


async def _matched(
    call: PageCall, matching: LetterFilter
) -> tuple[list[Place], dict[Place, int], bool]:
    """Return the places with letters that match, how many in each, and whether there are more."""
    chosen = call.query.get("place", "")
    places = [one for one in await find_places(call) if not chosen or one.key == chosen]
    if matching == LetterFilter():
        return places, {place: place.dead for place in places}, False
    found: Looked = await look_at(call, places, matching, _COUNTED)
    counts: dict[Place, int] = {}
    for letter in found.letters:
        counts[letter.place] = counts.get(letter.place, 0) + 1
    if found.more:
        return places, {place: counts.get(place, 0) for place in places}, True
    return list(counts), counts, False


def _bill(
    word: str, places: list[Place], counts: dict[Place, int], rate: int | None, at_least: bool
) -> Iterator[str]:
    for place in places[:20]:
        yield f"{place.words}: {'at least ' if at_least else ''}{number(counts[place])}"
    if len(places) > 20:
        yield f"and {len(places) - 20} more groups and queues."
    if at_least:
        yield f"{number(_COUNTED)} letters were looked at; the others are judged as they are met."
    if word == "redrive":
        yield (
            "They are handed out again, and their attempts begin anew. Letters of messages that a "
            "stream no longer holds stay."
        )
    else:
        yield (
            "They are forgotten and cannot be redriven. What a letter of a group holds stays in "
            "the stream of its dead letters until its retention; a letter of a queue is gone."
        )
    if rate:
        seconds = sum(counts.values()) / rate
        yield f"At {number(rate)}/s that takes about {number(max(round(seconds), 1))} s."
    yield (
        f"It begins {GRACE_MS // 1000} s after you ask for it: until then Undo takes all of it "
        "back. Then Stop leaves the rest, and what was done stays done. It outlives this server."
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


def _cli(word: str, place: Place, letters: list[str] | None, matching: LetterFilter) -> str:
    words: list[object] = ["stream", word, place.name, place.group]
    if not place.group:
        words = ["queue", word, place.name]
    if letters is not None:
        return cli_words(*words, *letters)
    for name, value in _spelled(matching).items():
        is_time = name.endswith("_ms")
        text = _time(value) if is_time else value
        words += [f"--{name.removesuffix('_ms').replace('_', '-')}", text]
    return cli_words(*words)


def _python(word: str, place: Place, letters: list[str] | None, matching: LetterFilter) -> str:
    if letters is not None:
        chosen = f"[{', '.join(letters)}]" if place.group else repr(letters)
        chosen = f"letters={chosen}"
    elif matching == LetterFilter():
        chosen = ""
    else:
        fields = ", ".join(f"{name}={value!r}" for name, value in _spelled(matching).items())
        chosen = f"matching=headwater.LetterFilter({fields})"
    if place.group:
        return f"hw.stream({place.name!r}).group({place.group!r}).{word}({chosen})"
    return f"hw.queue({place.name!r}).{word}({chosen})"


async def stop_letters(call: PageCall) -> Action:
    """Stop a job on dead letters, or take it back before it begins."""
    job = given(call, "job")
    found = [one for one in await call.served.letter_jobs.known() if one.job == job]
    if not found:
        raise InvalidInput("there is no such job; its notes may be gone")
    waiting = found[0].state == "waiting"
    names = [place.name for place in found[0].places]
    refused = next((name for name in names if not call.may(Scope.ADMIN, name)), names[0])
    return Action(
        title=f"{'Undo' if waiting else 'Stop'} the {found[0].action} of dead letters",
        scope=Scope.ADMIN,
        name=refused,
        bill=[
            "It has not begun: nothing happens to any letter."
            if waiting
            else f"{number(found[0].done)} letters are done and stay done; the others are left."
        ],
        method="POST",
        path="/v1/letters/stop",
        body={"job": job},
        cli="headwater has no command for it: a job is a task of the server",
        python="httpx.post(address + '/v1/letters/stop', json={'job': " + repr(job) + "})",
        back="/dead",
    )
