"""What one transaction of a consumer applies: messages up to a reset record, or that record."""

from __future__ import annotations

from typing import NamedTuple

from headwater.log.types import Message, Passage
from headwater.outbox.reset import resets_in


class ConsumerBatch(NamedTuple):
    """The messages between two positions, or one reset record; ``gap`` is what was evicted."""

    at: int
    after: int
    messages: list[Message]
    reset: Message | None
    gap: tuple[int, int] | None

    @property
    def records(self) -> list[Message]:
        """All that is handled, the reset record included."""
        return [self.reset] if self.reset else self.messages

    @property
    def bytes(self) -> int:
        """The size of all values."""
        return sum(len(message.value) for message in self.records)


def cut_batch(at: int, passage: Passage, reset_tag: str) -> ConsumerBatch:
    """Return what comes before the first reset record of this consumer, or that record.

    Reset records of other consumers are left out.
    """
    records = resets_in(passage.messages)
    if not records:
        return ConsumerBatch(at, passage.next, passage.messages, None, passage.gap)
    mine = next((record for record in records if record.tag == reset_tag), None)
    end = mine.offset if mine else passage.next
    others = {record.offset for record in records}
    messages = [m for m in passage.messages if m.offset < end and m.offset not in others]
    if mine and not (messages or passage.gap):
        return ConsumerBatch(at, end + 1, [], mine, None)
    return ConsumerBatch(at, end, messages, None, passage.gap)
