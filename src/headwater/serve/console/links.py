"""Addresses of pages, from the root of the console on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from headwater.serve.http.messages import path_part
from headwater.serve.jobs.letters import LetterHolder


def query(**given: Any) -> str:
    """Spell the query of a link; what is None is left out."""
    return urlencode({key: value for key, value in given.items() if value is not None})


def stream_link(stream: str) -> str:
    """Return the page of a stream."""
    return f"/streams/{path_part(stream)}"


def group_link(stream: str, group: str) -> str:
    """Return the page of a group."""
    return f"/streams/{path_part(stream)}/groups/{path_part(group)}"


def queue_link(queue: str) -> str:
    """Return the page of a queue."""
    return f"/queues/{path_part(queue)}"


def channel_link(channel: str) -> str:
    """Return the page of a channel of dirty lists."""
    return f"/lists/{path_part(channel)}"


def ick_link(key: str) -> str:
    """Return the page of an Ick."""
    return f"/ick?{urlencode({'key': key})}"


def topic_link(topic: str) -> str:
    """Return the page of a topic."""
    return f"/topics/{path_part(topic)}"


def job_link(job: str) -> str:
    """Return the page of a timed job."""
    return f"/timed/{path_part(job)}"


def consumer_link(consumer: str) -> str:
    """Return the page of a SQL consumer."""
    return f"/consumers/{path_part(consumer)}"


class Place(LetterHolder):
    """A group or a queue with dead letters, as pages show it."""

    __slots__ = ()

    @property
    def link(self) -> str:
        """The page of the group or the queue."""
        return group_link(self.name, self.group) if self.group else queue_link(self.name)
