"""What must be true of a topic: it knows how many partitions it has."""

from __future__ import annotations

from headwater.log.keys import topic_key
from headwater.log.limits import MAX_PARTITIONS
from headwater.store.key_scrubbing import NOBODYS, OwnedKey, check_type
from headwater.store.scrubbing import Checks, Command, ScrubLedger, number, read, shown


def check_topic(name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check a topic, without its streams, which are checked as such; it need not exist."""
    ledger.begin("topic", name)
    key = topic_key(name)
    commands: tuple[Command, ...] = (("HGET", key, "partitions"),)
    replies = yield read(ledger, key, *commands)
    if ledger.wrong_types(commands, replies) or replies[0] is None:
        return
    if not 1 <= (number(replies[0]) or 0) <= MAX_PARTITIONS:
        cure = f"count the streams {name}/0, {name}/1, ..., and set the field to that number"
        ledger.found("field partitions", f"1 to {MAX_PARTITIONS}", repr(replies[0]), cure)


def check_topic_key(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check a key under the name of a topic: it has one."""
    ledger.kind, ledger.name = "topic", found.name
    if found.part:
        ledger.found(f"key {shown(found.key)}", "a topic", "no such part", NOBODYS)
    else:
        yield from check_type(topic_key(found.name), found.key, "hash", ledger)
