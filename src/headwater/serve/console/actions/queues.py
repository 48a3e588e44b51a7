"""Actions on queues."""

from __future__ import annotations

from headwater.serve.console.actions.action import Action, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import part, queue_link
from headwater.serve.console.render import number
from headwater.serve.tokens import Scope


async def queue_state(call: PageCall) -> Action:
    """Pause or resume a queue."""
    queue = given(call, "queue")
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
        cli=cli_words("queue", word, queue),
        python=f"hw.queue({queue!r}).{word}()",
        back=queue_link(queue),
    )


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
            f"This drops {number(waiting)} messages for good: {number(stats.ready)} ready, "
            f"{number(stats.delayed)} delayed, {number(stats.unacked)} with consumers, "
            f"{number(stats.dead)} dead.",
        ],
        method="POST",
        path=f"/v1/queues/{part(queue)}/purge",
        body=None,
        cli=cli_words("queue", "purge", queue),
        python=f"hw.queue({queue!r}).purge()",
        back=queue_link(queue),
        careful=True,
    )
