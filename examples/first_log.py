"""A first log: write, read by offset, read as a group, read again.

python examples/first_log.py

Uses $HEADWATER_URL, or a private server with its data under .headwater/ in this directory.
"""

from __future__ import annotations

import json
import secrets

import headwater


def main() -> None:
    with headwater.connect() as hw:
        rides = hw.stream(f"first-log-{secrets.token_hex(4)}")

        first = rides.write("ride-1", json.dumps({"state": "requested"}))
        rest = rides.write_many(
            ("ride-1", json.dumps({"state": state})) for state in ("started", "ended", "paid")
        )
        print(f"written at offset {first}, then at {rest.start} to {rest.stop - 1}")

        last = rides.info().last
        print("two from the end, by arithmetic:", rides.read(last - 1, 2))

        group = rides.group("billing")
        for message in group.read(10, ack_ms=30_000):
            print("billing has", message.offset, json.loads(message.value)["state"])
            group.ack(message.offset)
        facts = group.info()
        print(f"billing stands at {facts.next}; pending {facts.pending}, still to come {facts.lag}")

        group.seek("first")
        print("read again from the first:", [message.offset for message in group.read(10)])

        rides.delete()


if __name__ == "__main__":
    main()
