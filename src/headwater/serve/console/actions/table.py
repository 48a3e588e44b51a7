"""The actions of the console by the names that forms give them."""

from __future__ import annotations

from typing import Final

from headwater.serve.console.actions.action import Prepare
from headwater.serve.console.actions.groups import discard, redrive, remove, seek
from headwater.serve.console.actions.queues import letters_action, purge, queue_state
from headwater.serve.console.actions.streams import evict

ACTIONS: Final[dict[str, Prepare]] = {
    "seek": seek,
    "redrive": redrive,
    "discard": discard,
    "remove": remove,
    "evict": evict,
    "queue-state": queue_state,
    "queue-redrive": letters_action(
        "redrive",
        "This makes {count} of {dead} dead letters ready again, the oldest first.",
        careful=False,
    ),
    "queue-discard": letters_action(
        "discard",
        "This forgets {count} of {dead} dead letters, the oldest first, for good.",
        careful=True,
    ),
    "purge": purge,
}
