"""Addresses of pages, from the root of the console on."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote, urlencode

from headwater.serve.http.messages import Refused


def part(name: str) -> str:
    """Spell a name as one part of a path."""
    return quote(name, safe="")


def unquoted(name: str) -> str:
    """Return the name that a part of a path spells; raises Refused, 400."""
    try:
        return unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "a name in the path is not UTF-8") from None


def query(**given: Any) -> str:
    """Spell the query of a link; what is None is left out."""
    return urlencode({key: value for key, value in given.items() if value is not None})


def stream_link(stream: str) -> str:
    """Return the page of a stream."""
    return f"/streams/{part(stream)}"


def group_link(stream: str, group: str) -> str:
    """Return the page of a group."""
    return f"/streams/{part(stream)}/groups/{part(group)}"


def queue_link(queue: str) -> str:
    """Return the page of a queue."""
    return f"/queues/{part(queue)}"


def channel_link(channel: str) -> str:
    """Return the page of a channel of dirty lists."""
    return f"/lists/{part(channel)}"


def ick_link(key: str) -> str:
    """Return the page of an Ick."""
    return f"/ick?{urlencode({'key': key})}"


def consumer_link(consumer: str) -> str:
    """Return the page of a SQL consumer."""
    return f"/consumers/{part(consumer)}"
