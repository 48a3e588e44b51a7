"""How a request is encoded as a command of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwater.store.call import Call, Key, Wait
from headwater.store.library import name_in_server


def encoder(kind: str) -> Callable[[Call | Wait], tuple[Any, ...]]:
    """Return the function that encodes requests for a store of that kind."""
    return _encode_for_node if kind == "cluster" else encode_for_server


def encode_for_server(request: Call | Wait) -> tuple[Any, ...]:
    """Return the command of a request to a server that is alone."""
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also)


def _encode_for_node(request: Call | Wait) -> tuple[Any, ...]:
    """Return the command of a request to a node of a cluster.

    While the slot is migrated to another node, key by key, a node that lacks one of the keys of a
    call refuses it as a whole (TRYAGAIN) instead of stopping it in the middle, at the first of the
    object's keys that is not there or not there any more. So each call names either all keys of its
    object, or a second one that never exists.
    """
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also or (_beside(request.key),))


def _beside(key: Key) -> Key:
    return f"{key}:" if isinstance(key, str) else key + b":"


def _fcall(call: Call, also: tuple[Key, ...]) -> tuple[Any, ...]:
    verb = "FCALL_RO" if call.read_only else "FCALL"
    return (verb, name_in_server(call.function), 1 + len(also), call.key, *also, *call.args)
