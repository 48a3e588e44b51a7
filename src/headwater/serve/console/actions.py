"""Actions: what the console can change, each as one request of the API.

An action says exactly what it will do before it is asked for, shows the same as a command, as a
request of HTTP and as Python, and is made by the route of the API: with its scopes and its audit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.log.types import GroupInfo
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link, part, queue_link, stream_link
from headwater.serve.console.render import number, size
from headwater.serve.tokens import Scope


class Action(NamedTuple):
    """A change that is ready to be made.

    ``bill`` are sentences that say what it will do, with counts. ``name`` is the object that the
    scope is needed on; ``back`` the page from which it was asked for.
    """

    title: str
    scope: Scope
    name: str
    bill: list[str]
    method: str
    path: str
    body: dict[str, Any] | None
    cli: str
    python: str
    back: str
    careful: bool = False

    def curl(self, address: str) -> str:
        """Return the same as a request of HTTP to a server."""
        words = ["curl", "-X", self.method]
        if self.body is not None:
            words += ["-H", "content-type: application/json", "-d", json.dumps(self.body)]
        words.append(f"{address}{self.path}")
        return shlex.join(words)


Prepare: TypeAlias = Callable[[PageCall], Awaitable[Action]]


def _given(call: PageCall, name: str) -> str:
    found = call.query.get(name, "")
    if not found:
        raise InvalidInput(f"this action needs {name}; use a button of the console")
    return found


def _cli(*words: object) -> str:
    return shlex.join(["headwater", *map(str, words)])


async def _group(call: PageCall) -> tuple[str, str, GroupInfo]:
    stream, group = _given(call, "stream"), _given(call, "group")
    call.check(stream)
    return stream, group, await call.hw.stream(stream).group(group).info()


def _place(text: str) -> int | str:
    text = text.replace(",", "").strip()
    if text in ("first", "last"):
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no offset; give a number, first or last") from None


async def seek(call: PageCall) -> Action:
    """Move a group to an offset, with a bill of what that hands out again or skips."""
    stream, group, facts = await _group(call)
    to = _place(_given(call, "to"))
    info = await call.hw.stream(stream).info()
    target = {"first": info.first, "last": info.last + 1}.get(to, to) if isinstance(to, str) else to
    target = int(target)
    again = max(facts.next - max(target, info.first), 0)
    skipped = max(min(target, info.last + 1) - facts.next, 0)
    bill = []
    if again:
        each = info.bytes / info.length if info.length else 0
        bill.append(
            f"This hands out {number(again)} messages again, about {size(again * each)}, of which "
            f"{number(facts.pending)} are pending now and become new."
        )
    if skipped:
        bill.append(f"This skips {number(skipped)} messages, which the group will not get.")
    if facts.pending and not again:
        bill.append(f"{number(facts.pending)} pending messages are forgotten.")
    if not bill:
        bill.append("The group stands there already; nothing changes.")
    left = max(info.last + 1 - target, 0)
    bill.append(f"{number(left)} messages are then before it. Members keep working.")
    return Action(
        title=f"Seek {group} of {stream} to {to if isinstance(to, str) else number(to)}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}/seek",
        body={"to": to},
        cli=_cli("stream", "seek", stream, group, to),
        python=f"hw.stream({stream!r}).group({group!r}).seek({to!r})",
        back=group_link(stream, group),
    )


async def redrive(call: PageCall) -> Action:
    """Hand out dead letters of a group again."""
    stream, group, facts = await _group(call)
    count = min(facts.dead, call.number("count", 1000) or 1000)
    return Action(
        title=f"Redrive dead letters of {group} of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"This returns {number(count)} of {number(facts.dead)} dead letters, the oldest first, "
            "to the group, which hands them out again; their attempts begin anew."
        ],
        method="POST",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}/redrive",
        body={"count": max(count, 1)},
        cli=_cli("stream", "redrive", stream, group, "--count", max(count, 1)),
        python=f"hw.stream({stream!r}).group({group!r}).redrive({max(count, 1)})",
        back="/dead",
    )


async def discard(call: PageCall) -> Action:
    """Forget dead letters of a group."""
    stream, group, facts = await _group(call)
    count = max(min(facts.dead, call.number("count", 1000) or 1000), 1)
    return Action(
        title=f"Discard dead letters of {group} of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"This forgets {number(min(count, facts.dead))} of {number(facts.dead)} dead letters, "
            "the oldest first. They cannot be redriven afterwards."
        ],
        method="POST",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}/discard",
        body={"count": count},
        cli=_cli("stream", "discard", stream, group, "--count", count),
        python=f"hw.stream({stream!r}).group({group!r}).discard(count={count})",
        back="/dead",
        careful=True,
    )


async def remove(call: PageCall) -> Action:
    """Remove a group."""
    stream, group, facts = await _group(call)
    return Action(
        title=f"Remove {group} of {stream}",
        scope=Scope.ADMIN,
        name=stream,
        bill=[
            f"The group is gone, with {number(facts.pending)} pending messages and "
            f"{number(facts.dead)} dead letters. Retention no longer waits for it.",
            "A member that reads later makes a new group, which begins at the first message.",
        ],
        method="DELETE",
        path=f"/v1/streams/{part(stream)}/groups/{part(group)}",
        body=None,
        cli=_cli("stream", "remove-group", stream, group),
        python=f"hw.stream({stream!r}).group({group!r}).remove()",
        back=stream_link(stream),
        careful=True,
    )


async def evict(call: PageCall) -> Action:
    """Evict messages, with a preview of who would be passed and by how much."""
    stream = _given(call, "stream")
    call.check(stream)
    up_to = _place(_given(call, "up_to"))
    if isinstance(up_to, str):
        raise InvalidInput("up_to is an offset")
    handle = call.hw.stream(stream)
    info = await handle.info()
    end = min(up_to, info.last)
    bill = [f"This evicts {number(max(end - info.first + 1, 0))} messages for good."]
    for name in info.groups:
        facts = await handle.group(name).info()
        passed = max(end + 1 - max(facts.ack_offset, info.first), 0)
        if passed:
            bill.append(f"The group {name} is passed: up to {number(passed)} messages are missed.")
    for name, needed in info.readers.items():
        passed = max(end + 1 - max(needed, info.first), 0)
        if passed:
            bill.append(f"The reader {name} is passed by {number(passed)} messages.")
    if len(bill) == 1:
        bill.append("Nobody is passed: every group and reader is further.")
    return Action(
        title=f"Evict {stream} up to {number(end)}",
        scope=Scope.ADMIN,
        name=stream,
        bill=bill,
        method="POST",
        path=f"/v1/streams/{part(stream)}/evict",
        body={"up_to": up_to},
        cli=_cli("stream", "evict", stream, up_to),
        python=f"hw.stream({stream!r}).evict({up_to})",
        back=stream_link(stream),
        careful=True,
    )


async def queue_state(call: PageCall) -> Action:
    """Pause or resume a queue."""
    queue = _given(call, "queue")
    call.check(queue)
    stats = await call.hw.queue(queue).stats()
    word = "resume" if stats.paused else "pause"
    waits = f"{number(stats.ready)} messages are ready, {number(stats.waiting)} consumers wait."
    effect = (
        "Consumers are served again."
        if stats.paused
        else "Nothing is handed out until it is resumed; pushes go on, and so do acknowledgements."
    )
    return Action(
        title=f"{word.title()} {queue}",
        scope=Scope.ADMIN,
        name=queue,
        bill=[effect, waits],
        method="PUT",
        path=f"/v1/queues/{part(queue)}/state",
        body={"paused": not stats.paused},
        cli=_cli("queue", word, queue),
        python=f"hw.queue({queue!r}).{word}()",
        back=queue_link(queue),
    )


def _queue_letters(word: str, sentence: str, *, careful: bool) -> Prepare:
    async def prepare(call: PageCall) -> Action:
        queue = _given(call, "queue")
        call.check(queue)
        stats = await call.hw.queue(queue).stats()
        count = max(min(stats.dead, call.number("count", 1000) or 1000), 1)
        shown = number(min(count, stats.dead))
        return Action(
            title=f"{word.title()} dead letters of {queue}",
            scope=Scope.ADMIN,
            name=queue,
            bill=[sentence.format(count=shown, dead=number(stats.dead))],
            method="POST",
            path=f"/v1/queues/{part(queue)}/{word}",
            body={"count": count},
            cli=_cli("queue", word, queue, "--count", count),
            python=f"hw.queue({queue!r}).{word}({count})",
            back=queue_link(queue),
            careful=careful,
        )

    return prepare


async def purge(call: PageCall) -> Action:
    """Drop all messages of a queue."""
    queue = _given(call, "queue")
    call.check(queue)
    stats = await call.hw.queue(queue).stats()
    waiting = stats.ready + stats.delayed + stats.unacked + stats.dead
    return Action(
        title=f"Purge {queue}",
        scope=Scope.ADMIN,
        name=queue,
        bill=[
            f"This drops {number(waiting)} messages for good: {number(stats.ready)} ready, "
            f"{number(stats.delayed)} delayed, {number(stats.unacked)} with consumers, "
            f"{number(stats.dead)} dead.",
        ],
        method="POST",
        path=f"/v1/queues/{part(queue)}/purge",
        body=None,
        cli=_cli("queue", "purge", queue),
        python=f"hw.queue({queue!r}).purge()",
        back=queue_link(queue),
        careful=True,
    )


ACTIONS: Final[dict[str, Prepare]] = {
    "seek": seek,
    "redrive": redrive,
    "discard": discard,
    "remove": remove,
    "evict": evict,
    "queue-state": queue_state,
    "queue-redrive": _queue_letters(
        "redrive",
        "This makes {count} of {dead} dead letters ready again, the oldest first.",
        careful=False,
    ),
    "queue-discard": _queue_letters(
        "discard",
        "This forgets {count} of {dead} dead letters, the oldest first, for good.",
        careful=True,
    ),
    "purge": purge,
}
