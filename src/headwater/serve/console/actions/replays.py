"""Actions that replay a range of a stream, and stop that."""

from __future__ import annotations

from typing import Any

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.log.inspecting import stream_profile
from headwater.log.replaying import ReplayRequest
from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import stream_link
from headwater.serve.console.render import age, counted, number, size
from headwater.serve.http.messages import path_part


async def replay(call: PageCall) -> Action:
    """Copy a range into another stream, with a bill of what that writes and how long it takes."""
    stream = given(call, "stream")
    call.check(stream)
    asked = _asked(call, stream)
    call.check(asked.target)
    if not call.may(Scope.WRITE, asked.target):
        raise InvalidInput(f"a replay into {asked.target!r} needs the write scope for it")
    info = await call.hw.stream(stream).info()
    target = await call.hw.stream(asked.target).info()
    first, last = asked.first or info.first, min(asked.last or info.last, info.last)
    count = max(last - max(first, info.first) + 1, 0)
    each = info.bytes / info.length if info.length else 0
    bill = [
        f"This writes {counted(count, 'message')}, about {size(count * each)}, to {asked.target}, "
        + (f"which has {number(target.length)}." if target.exists else "which this creates.")
    ]
    if first < info.first:
        bill.append(
            f"{number(info.first - first)} messages of the range were evicted and are missing."
        )
    if asked.group:
        bill.append(
            f"The group {asked.group} of {asked.target} gets these messages and none before."
        )
    if target.groups and not asked.group:
        bill.append(f"Its groups get them: {', '.join(target.groups[:10])}.")
    bill.append(await _lasts(call, asked, first, last))
    bill.append(
        "It runs in this server, which records its progress. If this server stops, another one "
        "continues from there, and nothing is written twice."
    )
    return Action(
        title=f"Replay {number(first)} – {number(last)} of {stream} into {asked.target}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{path_part(stream)}/replays",
        body=_body(asked),
        cli=cli_words("stream", "replay", stream, *_words(asked)),
        python=_python(asked),
        back=f"{stream_link(stream)}/replay",
        counts=(count,),
        is_job=True,
    )


def _asked(call: PageCall, stream: str) -> ReplayRequest:
    """Return what a form asks for; raises InvalidInput."""
    speed = call.query.get("speed", "max")
    try:
        factor = None if speed == "max" else float(speed.removesuffix("x"))
    except ValueError:
        raise InvalidInput(f"{speed!r} is no speed; give 1, 10 or max") from None
    asked = ReplayRequest(
        stream,
        call.query.get("into", "").strip() or None,
        call.number("first"),
        call.number("last"),
        factor,
        call.query.get("group", "").strip() or None,
        call.query.get("producer", "").strip() or None,
    )
    asked.check()
    return asked


async def _lasts(call: PageCall, asked: ReplayRequest, first: int, last: int) -> str:
    """Say how long a replay takes, by the times that the nodes of its range have."""
    if asked.speed is None:
        return "It runs as fast as the store accepts it."
    profile = await call.hw.store.run(stream_profile(asked.source, first, last))
    times = [time_ms for _, time_ms in profile.points(first, last)]
    lasts_ms = (times[-1] - times[0]) / asked.speed if times else 0
    return f"At {asked.speed:g}x it takes about {age(lasts_ms)}."


def _body(asked: ReplayRequest) -> dict[str, Any]:
    fields = ("into", "group", "first", "last", "speed", "producer")
    return {name: getattr(asked, name) for name in fields if getattr(asked, name) is not None}


def _words(asked: ReplayRequest) -> list[str]:
    words = _body(asked) | ({"speed": f"{asked.speed:g}x"} if asked.speed else {})
    return [str(word) for name, value in words.items() for word in (f"--{name}", value)]


def _python(asked: ReplayRequest) -> str:
    words = ", ".join(f"{name}={value!r}" for name, value in _body(asked).items())
    return f"hw.replay({asked.source!r}, {words})"


async def stop_replay(call: PageCall) -> Action:
    """Stop a replay that runs."""
    stream, name = given(call, "stream"), given(call, "replay")
    call.check(stream)
    found = [
        one
        for one in await call.served.jobs.replays.known(call.grant, stream)
        if one.replay == name
    ]
    if not found:
        raise InvalidInput(f"there is no replay {name!r} of {stream!r}")
    return Action(
        title=f"Stop the replay of {stream} into {found[0].into}",
        scope=Scope.ADMIN,
        name=stream,
        bill=["What is written stays. You can continue it later from where it stopped."],
        method="DELETE",
        path=f"/v1/streams/{path_part(stream)}/replays/{path_part(name)}",
        body=None,
        cli=cli_words("job", "stop", name),
        python=f"hw.stop_job({name!r})",
        back=f"{stream_link(stream)}/replay",
    )
