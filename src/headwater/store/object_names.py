"""Which object a key of the server belongs to."""

from __future__ import annotations

import re
from functools import lru_cache

from headwater.store.call import Key

# The keys of our objects: a letter for the data type, the name in braces, and of the keys on which
# members of a group wait, the group's name and its length.
_OURS = re.compile(r"hw:(?:(\w+):)?\{([^}]*)\}(?::g:(\d+):(.*))?", re.DOTALL)
_TYPES = {"s": "stream", "t": "topic", "q": "queue", "c": "channel", "cs": "channel"}


@lru_cache(maxsize=4096)
def object_of(key: Key) -> tuple[str, str]:
    """Return the data type and the name of the object that has a key; '' when its key is data."""
    if isinstance(key, bytes):
        return "timeline", ""
    ours = _OURS.match(key)
    if ours is None:
        return "ick", key
    letter, name, length, rest = ours.groups()
    if length is not None:
        return "group", f"{name}/{rest.encode()[: int(length)].decode()}"
    if letter == "cs":
        # A shard of a channel: its number is not a name.
        name = name.rsplit("/", 2)[0]
    return _TYPES.get(letter, "store"), name
