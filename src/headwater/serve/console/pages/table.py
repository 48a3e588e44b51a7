"""The pages of the console: where each is, and under which word of the navigation."""

from __future__ import annotations

from types import ModuleType
from typing import Final

from headwater.serve.console import letters
from headwater.serve.console.calls import ConsolePage, Context, PageCall
from headwater.serve.console.pages import overview, queues, readers, search, store, stream
from headwater.serve.console.pages import timelines as farms
from headwater.serve.http.messages import Refused

# A word, a path, and the key that goes there after g.
NAVIGATION: Final = (
    ("Overview", "", "o"),
    ("Streams", "/streams", "s"),
    ("Topics", "/topics", "k"),
    ("Queues", "/queues", "q"),
    ("Dirty lists", "/lists", "l"),
    ("Timelines", "/timelines", "m"),
    ("Outbox", "/outbox", "b"),
    ("Consumers", "/consumers", "c"),
    ("Spark", "/spark", "p"),
    ("Processes", "/processes", "w"),
    ("Timed jobs", "/timed", "t"),
    ("Dead letters", "/dead", "d"),
    ("Audit", "/audit", "a"),
    ("Store", "/store", "h"),
)


def _declared(*modules: ModuleType) -> tuple[ConsolePage, ...]:
    """Return the pages that modules declare, in their order."""
    return tuple(
        found
        for module in modules
        for found in vars(module).values()
        if isinstance(found, ConsolePage)
    )


_ALL: Final = _declared(overview, stream, readers, queues, farms, store, letters, search)
PAGES: Final = tuple(page for page in _ALL if page.template)
# What scripts of the pages ask for.
SOURCES: Final = tuple(page for page in _ALL if not page.template)


async def _show_none(_: PageCall) -> Context:
    raise Refused(404, "the console has no such page; the navigation has those that there are")


# What is shown where there is no page, so that a person gets a page all the same.
NO_PAGE: Final = ConsolePage("", _show_none)
