"""The registry of names: which streams and topics there are. It is asked without Arrow."""

from __future__ import annotations

from headwater.log.keys import DELETED, STREAMS, TOPICS
from headwater.store.call import Call, Operation


def list_streams() -> Operation[list[str]]:
    """Return the names of all streams, sorted."""
    return sorted(name.decode() for name in (yield _list(STREAMS)))


def list_deleted() -> Operation[list[str]]:
    """Return the names of streams that were deleted and are not freed yet, sorted."""
    return sorted(name.decode() for name in (yield _list(DELETED)))


def list_topics() -> Operation[list[str]]:
    """Return the names of all topics, sorted."""
    return sorted(name.decode() for name in (yield _list(TOPICS)))


def _list(registry: str) -> Call:
    return Call("hw_registry_list", registry, read_only=True)
