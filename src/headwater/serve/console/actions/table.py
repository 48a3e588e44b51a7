"""The actions of the console by the names that forms give them."""

from __future__ import annotations

from typing import Final

from headwater.serve.console.actions.action import Prepare
from headwater.serve.console.actions.consumers import (
    discard_consumer_letters,
    forget_consumer,
    remove_consumer,
    seek_consumer,
)
from headwater.serve.console.actions.groups import (
    group_state,
    remove,
    seek,
    settle_pending,
)
from headwater.serve.console.actions.queues import (
    delete_channel,
    delete_ick,
    one_message,
    purge,
    push,
    queue_state,
    reshard,
)
from headwater.serve.console.actions.streams import (
    delete,
    evict,
    replay,
    retain,
    stop_replay,
    write,
)
from headwater.serve.console.letters import move_letters, stop_letters

ACTIONS: Final[dict[str, Prepare]] = {
    "seek": seek,
    "remove": remove,
    "group-state": group_state,
    "pending": settle_pending,
    "evict": evict,
    "retain": retain,
    "delete-stream": delete,
    "write": write,
    "replay": replay,
    "replay-stop": stop_replay,
    "queue-state": queue_state,
    "letters": move_letters,
    "letters-stop": stop_letters,
    "consumer-seek": seek_consumer,
    "consumer-forget": forget_consumer,
    "consumer-remove": remove_consumer,
    "consumer-discard": discard_consumer_letters,
    "reshard": reshard,
    "delete-channel": delete_channel,
    "delete-ick": delete_ick,
    "purge": purge,
    "push": push,
    "promote": one_message(
        "promote",
        "It is delivered now, to the next consumer; its attempts are unchanged.",
        "ids",
        "delayed",
    ),
    "release": one_message(
        "release",
        "It is taken from the consumer that holds it and redelivered; that attempt does not count. "
        "If the consumer continues with it, its acknowledgement has no effect.",
        "receipts",
        "unacked",
    ),
}
