"""A search index that follows a log: tags become dirty, and each is indexed once.

A group member feeds a channel from the tags of a stream; two consumers handle them. Each part may
be killed and started again at any time: feeding is idempotent, and members that are not committed
are reserved again.
"""

from __future__ import annotations

import json
import threading

import headwater

RIDES = 200


def write_history(stream: headwater.Stream) -> None:
    """Write three states of every ride, one after the other."""
    for state in ("requested", "started", "ended"):
        stream.write_many(
            (f"ride-{number}", json.dumps({"ride": number, "state": state}))
            for number in range(RIDES)
        )


def feed(stream: headwater.Stream, channel: headwater.IckChannel) -> None:
    """Make every tag dirty, since its first message; a repeat changes nothing."""
    group = stream.group("feeder")
    while messages := group.read(100, ack_ms=30_000):
        channel.add({message.tag: message.time_ms for message in reversed(messages)})
        group.ack((messages[0].offset, messages[-1].offset))


def follow(channel: headwater.IckChannel, rows: dict[str, str], index: dict[str, str]) -> int:
    """Index the dirty members by reading them as they are now; returns how many."""
    done = 0
    while batch := channel.reserve(10):
        for member in batch.members:
            index[str(member)] = rows[str(member)]
        done += channel.commit(batch)
    return done


def main() -> None:
    with headwater.connect() as hw:
        stream = hw.stream("rides")
        write_history(stream)
        rows = {
            message.tag: json.loads(message.value)["state"]
            for message in stream.read(1, 3 * RIDES)
            if message is not None
        }
        feed(stream, hw.ick_channel("rides", shards=4))

        index: dict[str, str] = {}
        done: list[int] = []
        consumers = [
            threading.Thread(
                target=lambda: done.append(follow(hw.ick_channel("rides"), rows, index))
            )
            for _ in range(2)
        ]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()

        print(f"{3 * RIDES} messages made {sum(done)} rides dirty, each indexed once")
        if index != rows or sum(done) != RIDES:
            raise SystemExit("the index is not what the log says")


if __name__ == "__main__":
    main()
