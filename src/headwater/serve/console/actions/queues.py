"""Actions on queues."""

from __future__ import annotations

from urllib.parse import urlencode

from headwater.kernel.declaring import Scope
from headwater.serve.console.actions.action import Action, Prepare, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import queue_link
from headwater.serve.console.render import age, counted, number
from headwater.serve.http.messages import path_part


async def queue_state(call: PageCall) -> Action:
    """Pause or resume a queue."""
    queue = given(call, "queue")
    call.check(queue)
    stats = await call.hw.queue(queue).stats()
    word = "resume" if stats.paused else "pause"
    waits = f"{number(stats.ready)} messages are ready, {number(stats.waiting)} consumers wait."
    effect = (
        "Consumers get messages again."
        if stats.paused
        else "Consumers get no messages until it is resumed; pushes and acks still work."
    )
    return Action(
        title=f"{word.title()} {queue}",
        scope=Scope.ADMIN,
        name=queue,
        bill=[effect, waits],
        method="PUT",
        path=f"/v1/queues/{path_part(queue)}/state",
        body={"paused": not stats.paused},
        cli=cli_words("queue", word, queue),
        python=f"hw.queue({queue!r}).{word}()",
        back=queue_link(queue),
    )


async def push(call: PageCall) -> Action:
    """Push one message that was typed."""
    queue = given(call, "queue")
    call.check(queue)
    stats = await call.hw.queue(queue).stats()
    value = call.query.get("value", "")
    delay_ms = call.number("delay_ms", 0) or 0
    priority = call.number("priority", 0) or 0
    asked = {
        name: number_
        for name, number_ in (("delay_ms", delay_ms), ("priority", priority))
        if number_
    }
    options = [word for name, one in asked.items() for word in (_option(name), one)]
    words = "".join(f", {name}={one}" for name, one in asked.items())
    when = f"in {age(delay_ms)}" if delay_ms else "at once"
    return Action(
        title=f"Push a message to {queue}",
        scope=Scope.WRITE,
        name=queue,
        bill=[
            f"A message of {number(len(value.encode()))} bytes, priority {priority}: due {when}.",
            f"{number(stats.ready)} messages are ready, {number(stats.waiting)} consumers wait"
            f"{'; the queue is paused' if stats.paused else ''}.",
        ],
        method="POST",
        path=f"/v1/queues/{path_part(queue)}/messages" + (f"?{urlencode(asked)}" if asked else ""),
        body={"value": value},
        cli=cli_words("queue", "push", queue, value, *options),
        python=f"hw.queue({queue!r}).push({value!r}{words})",
        back=queue_link(queue),
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def one_message(word: str, sentence: str, named: str) -> Prepare:
    """Return an action on one message of a queue, which is named by its place."""

    async def prepare(call: PageCall) -> Action:
        queue, place = given(call, "queue"), given(call, "place")
        call.check(queue)
        message = place.rpartition(".")[2]
        shown = message if word == "promote" else place
        return Action(
            title=f"{word.title()} {message} of {queue}",
            scope=Scope.ADMIN,
            name=queue,
            bill=[sentence],
            method="POST",
            path=f"/v1/queues/{path_part(queue)}/{word}",
            body={named: [place]},
            cli=cli_words("queue", word, queue, shown),
            python=f"hw.queue({queue!r}).promote([{message!r}])"
            if word == "promote"
            else f"hw.queue({queue!r}).release({place!r})",
            back=f"{queue_link(queue)}?state={'delayed' if word == 'promote' else 'unacked'}",
        )

    return prepare


async def purge(call: PageCall) -> Action:
    """Drop all messages of a queue."""
    queue = given(call, "queue")
    call.check(queue)
    stats = await call.hw.queue(queue).stats()
    waiting = stats.ready + stats.delayed + stats.unacked + stats.dead
    return Action(
        title=f"Purge {queue}",
        scope=Scope.ADMIN,
        name=queue,
        bill=[
            f"This drops {counted(waiting, 'message')} for good: {number(stats.ready)} ready, "
            f"{number(stats.delayed)} delayed, {number(stats.unacked)} with consumers, "
            f"{number(stats.dead)} dead.",
        ],
        method="POST",
        path=f"/v1/queues/{path_part(queue)}/purge",
        body=None,
        cli=cli_words("queue", "purge", queue, "--yes"),
        python=f"hw.queue({queue!r}).purge()",
        back=queue_link(queue),
        careful=True,
        counts=(waiting,),
    )
