"""Actions on queues and dirty lists."""

from __future__ import annotations

from urllib.parse import urlencode

from headwater.doors.catalogue import CHANNEL, ICK, QUEUE
from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.types import ChannelStats
from headwater.kernel.declaring import Scope
from headwater.serve.console.actions.action import Action, Prepare, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import queue_link
from headwater.serve.console.render import age, counted, number
from headwater.serve.console.spelling import Bill, does
from headwater.serve.http.messages import path_part


@does(QUEUE, "pause")
async def queue_state(call: PageCall, queue: str) -> Bill:
    """Pause or resume a queue."""
    stats = await call.hw.queue(queue).stats()
    waits = f"{number(stats.ready)} messages are ready, {number(stats.waiting)} consumers wait."
    effect = (
        "Consumers get messages again."
        if stats.paused
        else "Consumers get no messages until it is resumed; pushes and acks still work."
    )
    return Bill([effect, waits], verb="resume" if stats.paused else "pause")


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


def one_message(verb: str, sentence: str, named: str, state: str) -> Prepare:
    """Return an action on one message of a queue in a state, which is named by its place."""

    @does(QUEUE, verb)
    async def prepare(call: PageCall, queue: str) -> Bill:
        place = given(call, "place")
        title = f"{verb.title()} {place.rpartition('.')[2]} of {queue}"
        then = f"{queue_link(queue)}?state={state}"
        return Bill([sentence], given={named: [place]}, title=title, then=then)

    return prepare


@does(QUEUE, "purge")
async def purge(call: PageCall, queue: str) -> Bill:
    """Drop all messages of a queue."""
    stats = await call.hw.queue(queue).stats()
    waiting = stats.ready + stats.delayed + stats.unacked + stats.dead
    said = (
        f"This drops {counted(waiting, 'message')} for good: {number(stats.ready)} ready, "
        f"{number(stats.delayed)} delayed, {number(stats.unacked)} with consumers, "
        f"{number(stats.dead)} dead."
    )
    return Bill([said], (waiting,))


async def _known(call: PageCall, name: str) -> ChannelStats:
    stats = await call.hw.ick_channel(name).stats()
    if stats is None:
        raise UnknownIck(name)
    return stats


@does(CHANNEL, "reshard")
async def reshard(call: PageCall, channel: str) -> Bill:
    """Change the number of shards of a channel."""
    shards = call.number("shards")
    if shards is None or not 1 <= shards <= 1024:
        raise InvalidInput("a channel has 1 to 1024 shards; give another number")
    stats = await _known(call, channel)
    asked = {"shards": shards}
    if shards == len(stats.shards):
        unchanged = f"The channel has {number(shards)} shards already; nothing changes."
        return Bill([unchanged], given=asked)
    waiting, leases = stats.ready + stats.later, sum(one.lease is not None for one in stats.shards)
    said = [
        f"The channel changes from {number(len(stats.shards))} to {number(shards)} shards.",
        f"{number(waiting)} waiting members move to their new shards while adds continue. "
        "No member is with two consumers.",
        f"It waits for {number(leases)} leases with {number(stats.reserved)} reserved members; "
        "until the last one ends, nothing is handed out.",
        "The counts of adds start again at zero.",
    ]
    return Bill(said, given=asked)


@does(CHANNEL, "delete")
async def delete_channel(call: PageCall, channel: str) -> Bill:
    """Delete a channel."""
    stats = await _known(call, channel)
    said = [
        f"This deletes the channel and all its members for good: {number(stats.ready)} ready, "
        f"{number(stats.later)} later, {number(stats.reserved)} reserved.",
        "Consumers that hold a batch of it cannot commit it any more.",
    ]
    return Bill(said, then="/lists")


@does(ICK, "delete")
async def delete_ick(call: PageCall, key: str) -> Bill:
    """Delete an Ick."""
    facts = await call.hw.ick(key).stats()
    if facts is None:
        raise UnknownIck(key)
    said = (
        f"This deletes the Ick and all its members for good: {number(facts['pset_size'])} "
        f"dirty, {number(facts['cset_size'])} reserved. Programs that use redis-ick lose them, too."
    )
    return Bill([said])
