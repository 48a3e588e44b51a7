"""What the shell completes: names of streams, topics, queues and other objects of the store.

It asks the store that the command would use, and makes none: where there is no embedded store yet,
and where the store cannot be asked, nothing is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from headwater.errors import HeadwaterError
from headwater.kernel import profiles

if TYPE_CHECKING:
    from headwater.client import Headwater


def streams(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams whose names begin so."""
    return _names(context, incomplete, lambda hw: hw.streams())


def topics(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so."""
    return _names(context, incomplete, lambda hw: hw.topics())


def queues(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues whose names begin so."""
    return _names(context, incomplete, lambda hw: hw.queues())


def channels(context: typer.Context, incomplete: str) -> list[str]:
    """Return the channels of dirty lists whose names begin so."""
    return _names(context, incomplete, lambda hw: hw.ick_channels())


def timed_jobs(context: typer.Context, incomplete: str) -> list[str]:
    """Return the timed jobs whose names begin so."""
    from headwater.timed.operating import list_jobs

    return _names(context, incomplete, lambda hw: hw.store.run(list_jobs()))


def readers(context: typer.Context, incomplete: str) -> list[str]:
    """Return the readers of the stream named before whose names begin so."""
    of = str(context.params.get("name", ""))
    return _names(context, incomplete, lambda hw: hw.stream(of).info().readers)


def groups(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups of the stream or topic named before whose names begin so."""
    of = str(context.params.get("name", ""))

    def found(hw: Headwater) -> Iterable[str]:
        # A topic's groups are those of each partition.
        stream = f"{of}/0" if "topic" in context.command_path.split() else of
        return hw.stream(stream).info().groups

    return _names(context, incomplete, found)


def _names(
    context: typer.Context, incomplete: str, listed: Callable[[Headwater], Iterable[str]]
) -> list[str]:
    from headwater.client import connect
    from headwater.store.directory import default_directory
    from headwater.store.url import resolve

    root = context.find_root().params
    url = context.params.get("store") or root.get("store_url")
    try:
        profile = profiles.load(root.get("profile"), root.get("config"), named_by="--config")
        with profiles.applied(profile):
            address = resolve(url, default_directory())
            if address.directory is not None and not address.directory.exists():
                return []
            with connect(url, wait_ms=0) as hw:
                return [name for name in listed(hw) if name.startswith(incomplete)]
    except HeadwaterError:
        return []
