"""Every door has every declared operation: derived, by hand, or absent for a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

import typer

from headwater.cli.derived import DOOR as COMMAND_LINE
from headwater.cli.program import every_command
from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, catalogue
from headwater.kernel.declaring import DOORS
from headwater.serve.api.derived import DOOR as HTTP
from headwater.serve.api.table import ROUTES
from headwater.serve.resp.derived import DOOR as RESP
from headwater.serve.resp.table import COMMANDS
from tests.support.goldens import ARCHITECTURE, by_hand, golden

# Of all places, that is operations times doors, at most so many are written by hand.
MOST_BY_HAND = 0.2


def test_every_operation_is_declared_alike_for_threads_and_for_asyncio() -> None:
    blocking, tasks = catalogue(asyncio=False), catalogue(asyncio=True)
    assert [(one.id, one.row) for one in blocking] == [(one.id, one.row) for one in tasks]
    assert [one.parameters for one in blocking] == [one.parameters for one in tasks]
    assert len({one.id for one in tasks}) == len(tasks)


def test_every_door_has_every_operation_or_the_row_says_why_not() -> None:
    assert {COMMAND_LINE, HTTP, RESP} == set(DOORS)
    for operation in catalogue(asyncio=True):
        row = operation.row
        assert set(row.absent) | set(row.override) <= set(DOORS), operation.id
        assert not set(row.absent) & set(row.override), operation.id
        assert all(len(reason) > 10 for reason in row.absent.values()), operation.id


def test_few_operations_are_written_by_hand_in_a_door() -> None:
    rows = catalogue(asyncio=True)
    count = sum(len(one.row.override) for one in rows)
    assert count <= MOST_BY_HAND * len(rows) * len(DOORS), golden("operations.txt")
    assert by_hand() in ARCHITECTURE.read_text("utf-8"), "make derived"


def test_what_is_derived_is_in_its_door() -> None:
    routes = {route.operation for route in ROUTES}
    commands = {command.name for command in COMMANDS.values()}
    line = set(_commands(every_command()))
    for operation in catalogue(asyncio=True):
        kind, row = operation.kind, operation.row
        if operation.is_in(HTTP):
            assert operation.id in routes
        if operation.is_in(RESP):
            name = row.resp or kind.letters + operation.verb.replace("_", "").upper()
            assert name in commands, operation.id
        if operation.is_in(COMMAND_LINE):
            name = row.command or operation.verb.replace("_", "-")
            assert f"{kind.command} {name}" in line, operation.id


def _commands(app: typer.Typer, path: str = "") -> Iterator[str]:
    """Yield every command of a group and of those below it, by all its words."""
    for command in app.registered_commands:
        yield f"{path}{command.name}"
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance, f"{path}{group.name} ")


def test_the_summary_of_an_operation_stands_for_itself() -> None:
    for operation in catalogue(asyncio=True):
        assert operation.summary.endswith("."), operation.id
        assert not re.search(r"\bsee \w+\.", operation.summary), operation.id


def test_every_door_has_the_dead_letters_of_every_kind() -> None:
    routes = {(route.method, route.path) for route in ROUTES}
    for kind in (GROUP, TOPIC_GROUP, QUEUE):
        for verb in ("dead", "redrive", "discard"):
            assert f"{kind.letters}{verb.upper()}".encode() in COMMANDS
            assert ("GET" if verb == "dead" else "POST", f"{kind.path}/{verb}") in routes
            groups = every_command().registered_groups
            (group,) = [one for one in groups if one.name == kind.command]
            assert group.typer_instance is not None
            assert verb in {one.name for one in group.typer_instance.registered_commands}
