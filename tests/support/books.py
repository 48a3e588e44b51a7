"""What transactions staged, compared with what the log holds; faults have names.

lost        a committed row is not in the log
duplicate   a row is in the log more than once
aborted     a row of a transaction that was rolled back is in the log
foreign     the log holds what nobody staged
reordered   two rows of one transaction are in one stream in another order
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from headwater import Headwater
from headwater.outbox import Outbox


@dataclass
class Transaction:
    """What one transaction staged, in order, as (stream, tag); tags are unique."""

    name: str
    rows: list[tuple[str, str]] = field(default_factory=list)
    committed: bool = False


class Books:
    """Keeps account of transactions; all streams have names of their own."""

    def __init__(self, outbox: Outbox[Any], prefix: str) -> None:
        self._outbox = outbox
        self._prefix = prefix
        self.transactions: list[Transaction] = []

    def begin(self) -> Transaction:
        """Open an account for a transaction."""
        transaction = Transaction(f"x{len(self.transactions)}")
        self.transactions.append(transaction)
        return transaction

    def stage(self, conn: Any, transaction: Transaction, *streams: str) -> None:
        """Stage one row for each of the streams."""
        for stream in streams:
            name, tag = f"{self._prefix}-{stream}", f"{transaction.name}:{len(transaction.rows)}"
            self._outbox.stage(conn, name, tag, tag.encode())
            transaction.rows.append((name, tag))

    def commit_one(self, engine: sa.Engine, *streams: str) -> None:
        """Run a whole transaction."""
        transaction = self.begin()
        with engine.begin() as conn:
            self.stage(conn, transaction, *streams)
        transaction.committed = True

    def count(self) -> int:
        """Return how many rows were committed."""
        return sum(len(one.rows) for one in self.transactions if one.committed)

    def in_log(self, hw: Headwater) -> dict[str, list[str]]:
        """Read what the log holds, by stream."""
        streams = {stream for one in self.transactions for stream, _ in one.rows}
        found: dict[str, list[str]] = {}
        for stream in streams:
            messages = hw.stream(stream).read(1, 1_000_000)
            assert all(m is not None and m.value == m.tag.encode() for m in messages)
            found[stream] = [message.tag for message in messages if message is not None]
        return found

    def arrived(self, hw: Headwater) -> int:
        """Return how many messages the log holds."""
        streams = {stream for one in self.transactions for stream, _ in one.rows}
        return sum(hw.stream(stream).info().last for stream in streams)

    def anomalies(self, hw: Headwater) -> list[str]:
        """Name every fault; an empty list means that all is well."""
        found = self.in_log(hw)
        seen = Counter((stream, tag) for stream, tags in found.items() for tag in tags)
        place = {(stream, tag): n for stream, tags in found.items() for n, tag in enumerate(tags)}
        faults = [f"duplicate {row}" for row, times in seen.items() if times > 1]
        staged = {row for one in self.transactions for row in one.rows}
        faults += [f"foreign {row}" for row in seen if row not in staged]
        for one in self.transactions:
            if not one.committed:
                faults += [f"aborted {row}" for row in one.rows if row in seen]
                continue
            faults += [f"lost {row}" for row in one.rows if row not in seen]
            by_stream: dict[str, list[int]] = defaultdict(list)
            for row in one.rows:
                if row in place:
                    by_stream[row[0]].append(place[row])
            faults += [
                f"reordered {one.name} in {stream}"
                for stream, places in by_stream.items()
                if places != sorted(places)
            ]
        return faults
