"""The actions of the console by the names that forms give them."""

from __future__ import annotations

from typing import Final

from headwater.serve.console import letters
from headwater.serve.console.actions import consumers, queues, streams
from headwater.serve.console.actions.action import Prepare

ACTIONS: Final[dict[str, Prepare]] = {
    "seek": streams.seek,
    "remove": streams.remove_group,
    "group-state": streams.group_state,
    "pending": streams.settle_pending,
    "evict": streams.evict,
    "retain": streams.retain,
    "delete-stream": streams.delete,
    "write": streams.write,
    "replay": streams.replay,
    "replay-stop": streams.stop_replay,
    "queue-state": queues.queue_state,
    "letters": letters.move_letters,
    "letters-stop": letters.stop_letters,
    "consumer-seek": consumers.seek_consumer,
    "consumer-forget": consumers.forget_consumer,
    "consumer-remove": consumers.remove_consumer,
    "consumer-discard": consumers.discard_consumer_letters,
    "reshard": queues.reshard,
    "delete-channel": queues.delete_channel,
    "delete-ick": queues.delete_ick,
    "purge": queues.purge,
    "push": queues.push,
    "promote": queues.one_message(
        "promote",
        "It is delivered now, to the next consumer; its attempts are unchanged.",
        "ids",
        "delayed",
    ),
    "release": queues.one_message(
        "release",
        "It is taken from the consumer that holds it and redelivered; that attempt does not count. "
        "If the consumer continues with it, its acknowledgement has no effect.",
        "receipts",
        "unacked",
    ),
}
