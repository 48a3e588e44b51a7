"""What a worker is made of is checked when it is made, before any handler runs."""

from __future__ import annotations

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
