"""Checks of a worker's arguments, when it is made and before any handler runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from difflib import get_close_matches

from headwater.errors import InvalidInput

_CURES = {
    "Stream": "open a group of it, stream.group(name)",
    "AsyncStream": "open a group of it, stream.group(name)",
    "Topic": "open a group of it, topic.group(name)",
    "AsyncTopic": "open a group of it, topic.group(name)",
    "Group": "use Worker",
    "TopicGroup": "use Worker",
    "Queue": "use QueueWorker",
    "AsyncGroup": "use AsyncWorker",
    "AsyncTopicGroup": "use AsyncWorker",
    "AsyncQueue": "use AsyncQueueWorker",
}


def check_object(found: object, *kinds: type) -> None:
    """Refuse an object that this worker cannot take messages from."""
    if isinstance(found, kinds):
        return
    names = " or ".join(kind.__name__ for kind in kinds)
    name = type(found).__name__
    cure = f"; {_CURES[name]}" if name in _CURES else ""
    raise InvalidInput(f"this worker takes messages from a {names}, not from a {name}{cure}")


def check_options(worker: type, options: Iterable[str]) -> None:
    """Raise TypeError for an option that a worker does not take, before there is a handler."""
    known = inspect.signature(worker).parameters
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"worker() got an unexpected keyword argument {name!r}{hint}")
