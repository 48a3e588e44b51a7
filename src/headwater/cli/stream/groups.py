"""The groups of a stream: where they stand, and what an operator may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater import views
from headwater.cli import output
from headwater.cli.group_output import GROUP_COLUMNS, NO_GROUPS, terms_text
from headwater.cli.group_settings import GroupSettings
from headwater.cli.option_groups import grouped
from headwater.cli.options import (
    AsJson,
    GroupName,
    OnlyStream,
    StoreUrl,
    StreamName,
    connected,
    known,
    known_stream,
    similar,
)
from headwater.errors import UnknownGroup

if TYPE_CHECKING:
    from headwater.log.group import Group


@contextmanager
def known_group(url: str | None, stream: str, group: str) -> Iterator[Group]:
    """Open a group that exists, in the block."""
    with known_stream(url, stream) as found:
        try:
            yield found.group(group)
        except UnknownGroup:
            raise UnknownGroup(stream, group, similar(group, found.info().groups)) from None


def list_groups(
    name: OnlyStream = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where every group stands, of one stream or of all."""
    with connected(store) as hw:
        streams = [known(hw, name).info()] if name else hw.store.run(views.overview.all_streams())
        found = hw.store.run(views.overview.groups_of(streams))
    output.show_list(
        found,
        lambda row: views.streams.GroupView.of(row.group, stream=row.stream),
        GROUP_COLUMNS if name else {"stream": lambda row: row.stream} | GROUP_COLUMNS,
        as_json,
        nothing=NO_GROUPS,
    )


@grouped
def set_group(
    name: StreamName,
    group: GroupName,
    wanted: GroupSettings,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a group with --start, or change how it delivers, and what it does with dead letters.

    Settings that are not named stay as they are.
    """
    arguments = wanted.arguments()
    with known_stream(store, name) as stream:
        wanted.check(f"stream {name!r}", group, stream.info().groups)
        found = stream.group(group, **arguments)
        found.read(0)
        facts = found.info()
    output.answer(
        views.streams.GroupView.of(facts, stream=name),
        f"{group}: next {facts.next}, {terms_text(facts)}",
        as_json,
    )
