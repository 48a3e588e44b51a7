"""Addresses of pages, from the root of the console on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from headwater.serve.http.messages import path_part
from headwater.serve.jobs.letters import LetterHolder


def query(**given: Any) -> str:
    """Spell the query of a link; what is None is left out."""
    return urlencode({key: value for key, value in given.items() if value is not None})


def _link(path: str) -> Callable[..., str]:
    """Return what makes the address of a page out of the names of its object."""
    return lambda *names: path.format(*map(path_part, names))


stream_link: Final = _link("/streams/{}")
group_link: Final = _link("/streams/{}/groups/{}")
topic_link: Final = _link("/topics/{}")
queue_link: Final = _link("/queues/{}")
channel_link: Final = _link("/lists/{}")
consumer_link: Final = _link("/consumers/{}")
job_link: Final = _link("/timed/{}")


def ick_link(key: str) -> str:
    """Return the page of an Ick, whose key is no part of a path."""
    return f"/ick?{query(key=key)}"


class Place(LetterHolder):
    """A group or a queue with dead letters, as pages show it."""

    __slots__ = ()

    @property
    def link(self) -> str:
        """The page of the group or the queue."""
        return group_link(self.name, self.group) if self.group else queue_link(self.name)
