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


Completer = Callable[[typer.Context, str], list[str]]


def _completer(listed: Callable[[Headwater, typer.Context], Iterable[str]]) -> Completer:
    """Return what completes one of the names that are listed."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        names = _listed(context, listed)
        return [name for name in names if name.startswith(incomplete)]

    return complete


def _timed_jobs(hw: Headwater, _: typer.Context) -> Iterable[str]:
    from headwater.timed.operating import list_jobs

    return hw.store.run(list_jobs())


def _groups(hw: Headwater, context: typer.Context) -> Iterable[str]:
    """Return the groups of the stream or topic named before."""
    # A topic's groups are those of each partition.
    of = _named_before(context)
    return hw.stream(f"{of}/0" if "topic" in context.command_path.split() else of).info().groups


def _named_before(context: typer.Context) -> str:
    return str(context.params.get("name", ""))


streams = _completer(lambda hw, _: hw.streams())
topics = _completer(lambda hw, _: hw.topics())
queues = _completer(lambda hw, _: hw.queues())
channels = _completer(lambda hw, _: hw.ick_channels())
timed_jobs = _completer(_timed_jobs)
readers = _completer(lambda hw, context: hw.stream(_named_before(context)).info().readers)
groups = _completer(_groups)


def _listed(
    context: typer.Context, listed: Callable[[Headwater, typer.Context], Iterable[str]]
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
                return list(listed(hw, context))
    except HeadwaterError:
        return []
