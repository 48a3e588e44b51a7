"""Actions on SQL consumers, on servers that were given a database."""

from __future__ import annotations

from headwater.doors.catalogue import CONSUMER
from headwater.errors import InvalidInput, UnknownConsumer
from headwater.serve.console.actions.action import given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.render import counted, number
from headwater.serve.console.ruler import position_of
from headwater.serve.console.spelling import Bill, does
from headwater.serve.http.messages import Refused
from headwater.views.outboxes import ConsumerPlace, consumer_places


async def _place(call: PageCall, consumer: str) -> ConsumerPlace:
    """Return the consumer on the stream that a form names; raises UnknownConsumer."""
    stream = given(call, "stream")
    if call.served.database is None:
        raise Refused(404, "this server was given no database; start it with --db URL")
    there = (await call.served.database.status()).checkpoints
    own = [one for one in there if one.consumer == consumer]
    if not own:
        raise UnknownConsumer(consumer)
    for one in await call.hw.store.run(consumer_places(own)):
        if one.checkpoint.stream == stream:
            return one
    raise InvalidInput(f"consumer {consumer!r} has no position on {stream!r}")


def _python(place: ConsumerPlace, rest: str) -> str:
    one = place.checkpoint
    return f"Consumer({one.consumer!r}, [{one.stream!r}], engine, hw, print).{rest}"


@does(CONSUMER, "seek")
async def seek_consumer(call: PageCall, consumer: str) -> Bill:
    """Set where a consumer goes on, with a bill of what it handles again or never."""
    place = await _place(call, consumer)
    one = place.checkpoint
    to = await position_of(call, one.stream, given(call, "to"), one.next_offset)
    info = await call.hw.stream(one.stream).info()
    target = {"first": info.first, "last": info.last + 1}.get(str(to), to)
    assert isinstance(target, int)
    distance = target - one.next_offset
    if distance < 0:
        words = (
            f"It handles {counted(-distance, 'message')} again. Effects that are committed stay: "
        )
        words += "restore the state of that offset first, unless the handler is idempotent."
    elif distance:
        words = f"It skips {counted(distance, 'message')} and never handles them."
    else:
        words = "It is already there; nothing changes."
    return Bill(
        [
            f"The consumer is at {number(one.next_offset)} and continues at {number(target)}.",
            words,
            "A running process follows with its next batch, or within about two seconds.",
        ],
        given={"to": to, "stream": one.stream},
        title=f"Seek {one.consumer} on {one.stream} to {number(target)}",
        python=_python(place, f"seek({to!r}, stream={one.stream!r})"),
        careful=distance != 0,
        sql=True,
        pinned=(("to", str(to)),),
    )


@does(CONSUMER, "forget")
async def forget_consumer(call: PageCall, consumer: str) -> Bill:
    """Make retention wait no longer for a consumer."""
    place = await _place(call, consumer)
    one = place.checkpoint
    return Bill(
        [
            "Retention stops waiting for it until it runs again. Its position stays in the "
            "database.",
            f"{number(place.lag)} messages that it has not handled may be evicted; it would then "
            "report a gap.",
        ],
        given={"stream": one.stream},
        title=f"Stop retaining messages of {one.stream} for {one.consumer}",
        python=f"hw.stream({one.stream!r}).forget_reader({'consumer:' + one.consumer!r})",
        careful=True,
    )


@does(CONSUMER, "remove")
async def remove_consumer(call: PageCall, consumer: str) -> Bill:
    """Remove the position of a consumer."""
    place = await _place(call, consumer)
    one = place.checkpoint
    return Bill(
        [
            f"This removes its position, {number(one.next_offset)}, from the database; "
            f"{number(place.lag)} messages wait for it. Effects that are committed stay.",
            "A process that still runs it stops with CheckpointRemoved. One that starts later "
            "begins where its declaration says.",
        ],
        given={"stream": one.stream},
        title=f"Remove the position of {one.consumer} on {one.stream}",
        python=_python(place, "remove()"),
        then="/consumers",
        careful=True,
        sql=True,
    )


@does(CONSUMER, "discard")
async def discard_consumer_letters(call: PageCall, consumer: str) -> Bill:
    """Drop what a consumer gave up of a stream, up to now."""
    place = await _place(call, consumer)
    one, name = place.checkpoint, place.letters
    info = await call.hw.stream(name).info()
    if not info.length:
        raise InvalidInput(f"consumer {one.consumer!r} has no dead letters of {one.stream!r}")
    return Bill(
        [
            f"This evicts {number(info.length)} dead letters of {one.consumer} on "
            f"{one.stream} for good, which are messages {number(info.first)} to "
            f"{number(info.last)} of the stream {name}. Dead letters that come later stay.",
            "The messages themselves stay in their stream.",
        ],
        given={"stream": one.stream, "up_to": info.last},
        title=f"Discard dead letters of {one.consumer}",
        python=_python(place, f"discard({info.last})"),
        careful=True,
        sql=True,
    )
