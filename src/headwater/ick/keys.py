"""The keys of dirty lists: an Ick's are those of redis-ick; a channel's shards are spread."""

from __future__ import annotations

from headwater.errors import InvalidInput
from headwater.ick.limits import MAX_KEY_BYTES
from headwater.kernel.inputs import check_name

CHANNELS = "hw:{channels}"


def ick_keys(name: str, one_server: bool) -> tuple[str, str, str]:
    """Return the keys of an Ick: its flag, its producer set, its consumer set.

    They are those of redis-ick, without a prefix of ours. On a cluster they must share a slot: they
    do unless the name has braces that do not form a hash tag, which is refused there.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"the key of an Ick must be a str, not {type(name).__name__}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the key of an Ick must be text, not {name!r}; choose another"
        ) from None
    if not 1 <= size <= MAX_KEY_BYTES:
        raise InvalidInput(
            f"the key of an Ick must have 1 to {MAX_KEY_BYTES} bytes, not {size}; choose another"
        )
    pset = f"{name}/ick/{{{name}}}/pset"
    if not one_server and hash_tag(pset) != hash_tag(name):
        raise InvalidInput(
            f"the keys of the Ick {name!r} would be in different slots of a cluster; use a key "
            "without braces, or one whose braces hold a hash tag, as 'a{b}'"
        )
    return name, pset, f"{name}/ick/{{{name}}}/cset"


def hash_tag(key: str) -> str:
    """Return the part of a key by which a cluster finds its slot."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def channel_key(name: str) -> str:
    """Return the key of a channel, under which its layout is kept."""
    return f"hw:c:{{{check_name(name, 'channel')}}}"


def shard_key(name: str, epoch: int, shard: int) -> str:
    """Return the key of a shard; every other key of it begins with this one."""
    return f"hw:cs:{{{name}/{epoch}/{shard}}}"
