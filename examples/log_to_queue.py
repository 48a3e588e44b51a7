"""From a log to a queue, exactly once: each message becomes one task, whatever crashes.

A group member reads the stream, pushes each message under a key made of stream and offset, and then
acknowledges. If it dies in between, the messages are redelivered, and the queue deduplicates them.
"""

from __future__ import annotations

import headwater


def feed(rides: headwater.Stream, receipts: headwater.Queue) -> int:
    """Push a task for each new message; returns how many messages it saw."""
    group = rides.group("receipts")
    seen = 0
    while messages := group.read(1000, ack_ms=30_000):
        receipts.push_many(
            [message.value for message in messages],
            dedupe=[f"{rides.name}/{message.offset}" for message in messages],
        )
        group.ack(*(message.offset for message in messages))
        seen += len(messages)
    return seen


def main() -> None:
    with headwater.connect() as hw:
        rides, receipts = hw.stream("rides"), hw.queue("receipts")
        rides.write_many([(f"ride-{number}", b"%d km" % number) for number in range(1, 6)])
        print(f"fed {feed(rides, receipts)} messages")
        # As after a crash between the push and the ack: all messages are read again ...
        rides.group("receipts").seek("first")
        print(f"fed {feed(rides, receipts)} messages again")
        # ... and each is in the queue once.
        tasks = receipts.pop(100, ack_ms=30_000)
        print(f"{len(tasks)} receipts to write: {[task.value.decode() for task in tasks]}")
        receipts.ack(*tasks)


if __name__ == "__main__":
    main()
