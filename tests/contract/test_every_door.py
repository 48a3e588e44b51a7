"""Every derived operation, in every door: it does what the method of the library does.

Each runs on two objects of the same history: by the library on one, through the door on the other.
The answers and what both objects are like afterwards must be equal.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pytest

import headwater
from headwater.doors.catalogue import KINDS, Declared, catalogue
from headwater.doors.replies import sentence
from headwater.ick.types import Batch, Reserved
from headwater.kernel.declaring import DOORS
from tests.support.api import ApiServer
from tests.support.blocking import Loop
from tests.support.every_door import (
    AnyDoor,
    Asked,
    CommandLine,
    HttpDoor,
    RespDoor,
    alike,
)
from tests.support.resp import RespServer
from tests.support.stores import Stores
from tests.support.timed import Clockwork

OPERATIONS: Final = {operation.id: operation for operation in catalogue(asyncio=False)}
DERIVED: Final = [
    (door, operation)
    for operation in OPERATIONS.values()
    for door in DOORS
    # What is in a database has tests of its own, and a table is printed by a function of its own.
    if operation.is_in(door) and not operation.kind.database and operation.verb != "dead"
]
WITH_OPTIONS: Final = [
    (door, operation.id, all_of_them)
    for door, operation in DERIVED
    for all_of_them in (False, True)
    if not all_of_them or any(not one.required for one in operation.parameters)
]
# What is refused of an object that nobody has used; the command line creates nothing by mistake.
REFUSED: Final = [
    (door, operation.id)
    for door, operation in DERIVED
    if operation.row.known
    or operation.row.must
    or (door == "command line" and not operation.row.creates)
]
HELD_MS: Final = 600_000
# What is given for a parameter; of some, it depends on the object.
SAMPLES: Final[dict[str, Any]] = {
    "ack_ms": 700_000,
    "after_ms": 1000,
    "backoff": "fixed",
    "backwash": True,
    "backoff_ms": 1500,
    "before_ms": 4_000_000_000_000,
    "by_partition": {0: [1, (3, 4)]},
    "consumer": "c",
    "count": 2,
    "delay_ms": 400_000,
    "error": "no such ride",
    "ids": ["5"],
    "force": True,
    "longest_backoff_ms": 1500,
    "marker_ms": 60_000,
    "max_age_ms": 86_400_000,
    "max_attempts": 3,
    "max_bytes": 1_000_000,
    "max_count": 4,
    "max_idle_ms": 86_400_000,
    "max_in_flight": 7,
    "max_in_flight_per_key": 2,
    "members": {"a": 1.5, "z": 1.5},
    "min_attempts": 1,
    "not_before": 1000,
    "offsets": [1, (3, 4)],
    "on": False,
    "past_readers": False,
    "producer": "p",
    "rate": "10/s",
    "rate_per_key": "5/s",
    "reader": "r",
    "receipts": ["5"],
    "shard": 0,
    "shards": 2,
    "tag": "t1",
    "time_ms": 1,
    "to": 3,
    "up_to": 2,
}
# Letters are named, or said to fit; only the command line paces their walk.
NOT_BOTH: Final = ("offsets", "ids", "rate")
# Limits that some kinds cannot keep.
NO_LIMITS: Final = {
    "queue": ("max_in_flight_per_key", "rate_per_key"),
    "topic_group": ("max_in_flight", "rate"),
}


class History(NamedTuple):
    """What has happened to an object: it returns the address, and what some parameters are."""

    begin: Callable[[headwater.Headwater, str], tuple[str, ...]]
    given: Callable[[headwater.Headwater, str], dict[str, Any]] = lambda _, __: {}


def _stream(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    stream = hw.stream(name)
    stream.write_many([(f"t{number % 2}", b"v") for number in range(5)])
    stream.write_many([("t", b"v")], producer="p", sequence=4)
    stream.register_reader("r", 2)
    return (name,)


def _group(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    _stream(hw, name)
    group = hw.stream(name).group("g", dead_letters=True)
    group.read(4, ack_ms=HELD_MS)
    group.bury(2, error="no such ride")
    return name, "g"


def _topic(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    hw.topic(name, 1).write_many([(f"t{number % 2}", b"v") for number in range(6)])
    return (name,)


def _topic_group(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    _topic(hw, name)
    group = hw.topic(name).group("g", dead_letters=True)
    group.read(4, ack_ms=HELD_MS)
    group.bury((0, 2), error="no such ride")
    return name, "g"


def _queue(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    queue = hw.queue(name)
    queue.push_many([b"a", b"b", b"c", b"d"])
    queue.push(b"later", delay_ms=HELD_MS)
    queue.bury(*queue.pop(1, ack_ms=HELD_MS), error="no such ride")
    queue.pop(2, ack_ms=HELD_MS)
    return (name,)


def _of_queue(hw: headwater.Headwater, name: str) -> dict[str, Any]:
    queue = hw.queue(name)
    held = [item.place for item in queue.peek(2, state="unacked")]
    return {"receipts": held, "ids": [item.id for item in queue.peek(1, state="delayed")]}


def _ick(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    ick = hw.ick(name)
    ick.add({"a": 1, "b": 2, "c": 3})
    ick.reserve(2)
    return (name,)


def _channel(hw: headwater.Headwater, name: str) -> tuple[str, ...]:
    hw.ick_channel(name, shards=1).add({"a": 1, "b": 2})
    return (name,)


def _of_channel(hw: headwater.Headwater, name: str) -> dict[str, Any]:
    channel = hw.ick_channel(name, consumer="c")
    if channel.stats() is None:
        return {"batch": Batch(name, 1, 0, 1, 1, (Reserved("a", 1.0, 1),))}
    return {"batch": channel.reserve(2)}


HISTORIES: Final = {
    "stream": History(_stream),
    "group": History(_group),
    "topic": History(_topic),
    "topic_group": History(_topic_group),
    "queue": History(_queue, _of_queue),
    "ick": History(_ick),
    "channel": History(_channel, _of_channel),
}


class Bench(NamedTuple):
    """A store, the doors to it, and what makes timed jobs."""

    hw: headwater.Headwater
    doors: dict[str, AnyDoor]
    clockwork: Clockwork

    def begin(self, kind: str, name: str) -> tuple[str, ...]:
        """Make an object with a history; returns its address."""
        if kind != "timed_job":
            return HISTORIES[kind].begin(self.hw, name)
        self.clockwork.runner(name, print, every="1h")()
        return (name,)

    def given(self, operation: Declared, name: str, *, all_of_them: bool) -> dict[str, Any]:
        """Return a value for each parameter, or for those that need one."""
        kind = operation.kind.name
        own = HISTORIES[kind].given(self.hw, name) if kind in HISTORIES else {}
        if kind == "topic_group":
            own["offsets"] = SAMPLES["by_partition"]
        if operation.yields:
            own["count"] = 100
        if operation.verb in ("commit", "release", "exchange"):
            own["members"] = ["a"]
        refused: tuple[str, ...] = NO_LIMITS.get(kind, ()) if operation.verb == "limit" else ()
        if operation.verb in ("redrive", "discard"):
            refused = NOT_BOTH
        return {
            one.called: own.get(one.called) or SAMPLES[one.called]
            for one in operation.parameters
            if (all_of_them or one.required) and one.called not in refused
        }


@pytest.fixture(scope="module")
def bench(stores: Stores, door: RespServer, loop: Loop) -> Iterator[Bench]:
    url = stores.url("plain")
    with (
        headwater.connect(url) as hw,
        ApiServer(url) as api,
        door.raw() as raw,
        contextlib.closing(Clockwork("sync", url, loop)) as clockwork,
    ):
        raw.ask("HELLO", "3")
        doors: dict[str, AnyDoor] = {
            "command line": CommandLine(url),
            "HTTP": HttpDoor(api.client()),
            "RESP": RespDoor(raw.ask),
        }
        yield Bench(hw, doors, clockwork)


def test_every_kind_of_object_has_a_history_here() -> None:
    assert {kind.name for kind in KINDS if not kind.database} == {*HISTORIES, "timed_job"}


@pytest.mark.parametrize(("through", "operation_id", "all_of_them"), WITH_OPTIONS)
def test_a_door_does_what_the_library_does(
    bench: Bench, through: str, operation_id: str, all_of_them: bool
) -> None:
    operation, door = OPERATIONS[operation_id], bench.doors[through]
    kind, results, states = operation.kind, [], []
    name, twin = _two_names()
    for own in (name, twin):
        names = bench.begin(kind.name, own)
        given = bench.given(operation, own, all_of_them=all_of_them)
        target = kind.open(bench.hw, *names, **operation.wishes(given))
        if own == name:
            value = operation.call(target, given)
            in_path = [given[key] for key in operation.in_path]
            results.append(alike(door.answer(operation, [*names, *in_path], value), own))
        else:
            results.append(alike(door.ask(operation, names, given), own))
        states.append(alike(state(bench.hw, operation, own, target), own))
    assert results[0] == results[1]
    assert states[0] == states[1]


def state(hw: headwater.Headwater, operation: Declared, name: str, target: Any) -> Any:
    if operation.id == "delete_topic":
        return name in hw.topics()
    try:
        return getattr(target, operation.kind.state)()
    except headwater.HeadwaterError as error:
        return type(error).__name__


@pytest.mark.parametrize(
    "operation_id",
    [operation.id for door, operation in DERIVED if door == "command line" and operation.row.says],
)
def test_a_command_prints_the_sentence_of_its_operation(bench: Bench, operation_id: str) -> None:
    operation, name, twin = OPERATIONS[operation_id], *_two_names()
    line = bench.doors["command line"]
    assert isinstance(line, CommandLine)
    address = bench.begin(operation.kind.name, name)
    given = bench.given(operation, name, all_of_them=False)
    value = operation.call(operation.kind.open(bench.hw, *address), given)
    names = bench.begin(operation.kind.name, twin)
    given = bench.given(operation, twin, all_of_them=False)
    in_path = [given[key] for key in operation.in_path]
    printed = line.run(operation, names, given).out
    said = f"{sentence(operation, [*names, *in_path], value)}\n"
    assert alike(printed, twin) == alike(said, twin)


def _two_names() -> tuple[str, str]:
    return f"n-{secrets.token_hex(4)}", f"n-{secrets.token_hex(4)}"


@pytest.mark.parametrize(("through", "operation_id"), REFUSED)
def test_what_has_to_exist_is_refused_by_every_door_where_it_does_not(
    bench: Bench, through: str, operation_id: str
) -> None:
    operation, name = OPERATIONS[operation_id], f"n-{secrets.token_hex(4)}"
    names = (name, "g")[: len(operation.kind.keys)]
    given = bench.given(operation, name, all_of_them=False)
    try:
        answer = bench.doors[through].ask(operation, names, given)
    except Asked as refused:
        answer = refused.args[0]
    # Of what has to be there, RESP removes 0, as Redis does.
    assert answer in (404, 1, "NOTFOUND", "NOGROUP", *([0] if operation.row.must else []))
    there = (bench.hw.streams(), bench.hw.topics(), bench.hw.queues(), bench.hw.ick_channels())
    assert not any(name in names for names in there)
