"""The public names are what they say they are, the same for both clients, and stay."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import pytest

import headwater
from headwater import aio, errors, outbox

PAIRS: list[tuple[type, type]] = [
    (headwater.Headwater, aio.AsyncHeadwater),
    (headwater.Stream, aio.AsyncStream),
    (headwater.Group, aio.AsyncGroup),
    (headwater.Topic, aio.AsyncTopic),
    (headwater.TopicGroup, aio.AsyncTopicGroup),
    (headwater.Ick, aio.AsyncIck),
    (headwater.IckChannel, aio.AsyncIckChannel),
    (headwater.Queue, aio.AsyncQueue),
]
WORKERS: list[tuple[type, type]] = [
    (headwater.Worker, aio.AsyncWorker),
    (headwater.QueueWorker, aio.AsyncQueueWorker),
    (headwater.TimedRunner, aio.AsyncTimedRunner),
    (headwater.TimedJobs, aio.AsyncTimedJobs),
]

# What other people's code calls: more may be added, nothing of this may change.
FIXED: dict[Callable[..., Any], str] = {
    headwater.connect: "url=None",
    aio.connect: "url=None",
    headwater.Headwater.stream: "name",
    headwater.Headwater.topic: "name partitions=None",
    headwater.Headwater.ick: "name",
    headwater.Headwater.ick_channel: "name shards=None",
    headwater.Headwater.close: "",
    headwater.Stream.write: "tag value * backlog=None",
    headwater.Stream.write_many: "entries * backlog=None producer=None sequence=None",
    headwater.Stream.append: "arrow_batch * producer=None sequence=None",
    headwater.Stream.read: "offset count * block_ms=None",
    headwater.Stream.scan: "start=None stop=None",
    headwater.Stream.info: "",
    headwater.Stream.evict: "n",
    headwater.Stream.compact: "",
    headwater.Stream.retain: "* max_count=None max_age_ms=None max_bytes=None",
    headwater.Stream.offset_at: "time_ms",
    headwater.Stream.delete: "",
    headwater.Stream.group: "name start='first' * max_pending=None dead_letters=None",
    headwater.Group.read: "count * block_ms=None ack_ms=None expire_ms=None",
    headwater.Group.ack: "*offsets",
    headwater.Group.nack: "*offsets * delay_ms=0",
    headwater.Group.extend: "*offsets * ack_ms",
    headwater.Group.seek: "offset",
    headwater.Group.info: "",
    headwater.Headwater.queue: "name",
    headwater.Queue.push: "value * delay_ms=0",
    headwater.Queue.push_many: "values * delay_ms=0",
    headwater.Queue.pop: "count=1 * ack_ms=None block_ms=None",
    headwater.Queue.ack: "*deliveries",
    headwater.Queue.nack: "*deliveries * delay_ms=0",
    headwater.Queue.extend: "*deliveries * ack_ms",
    headwater.Queue.stats: "",
    headwater.Queue.dead: "count=100",
    headwater.Queue.redrive: "",
    headwater.Queue.purge: "",
    headwater.Topic.write: "tag value * backlog=None",
    headwater.Topic.write_many: "entries * backlog=None producer=None sequence=None",
    headwater.Topic.group: "name start='first' * max_pending=None dead_letters=None",
    headwater.Ick.add: "scores",
    headwater.Ick.reserve: "n backwash=False",
    headwater.Ick.commit: "*members",
    headwater.Ick.exchange: "n *members * backwash=False",
    headwater.Ick.stats: "",
    headwater.Ick.delete: "",
}
FIELDS: dict[type, tuple[str, ...]] = {
    headwater.Delivery: ("id", "value", "attempt", "receipt"),
    headwater.Message: ("offset", "tag", "value", "time_ms", "attempt"),
    headwater.StreamInfo: ("first", "last", "length", "bytes"),
    headwater.GroupInfo: ("next", "ack_offset", "pending", "lag", "missed"),
}


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_all_is_what_there_is() -> None:
    assert len(set(headwater.__all__)) == len(headwater.__all__)
    assert sorted(headwater.__all__) == headwater.__all__
    ours = {
        name
        for name in public(headwater)
        if getattr(getattr(headwater, name), "__module__", "").startswith("headwater.")
    }
    assert ours | {"__version__", "aio", "instrument", "tracing"} == set(headwater.__all__)


def test_a_star_import_gives_all_of_it() -> None:
    found: dict[str, Any] = {}
    exec("from headwater import *", found)
    assert set(headwater.__all__) <= set(found)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(headwater, "nothing")  # noqa: B009


def test_every_error_is_public_and_in_one_tree() -> None:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert {c.__name__ for c in classes} <= set(headwater.__all__)
    assert all(issubclass(c, headwater.HeadwaterError) for c in classes)
    drawn = errors.__doc__ or ""
    assert all(f" {c.__name__} " in f" {drawn} ".replace("\n", " ") for c in classes)


def test_the_async_module_names_its_classes() -> None:
    assert set(aio.__all__) == {"connect", *(twin.__name__ for _, twin in [*PAIRS, *WORKERS])}


def test_a_worker_can_still_be_imported_from_the_outbox() -> None:
    assert outbox.Worker is headwater.Worker
    assert outbox.AsyncWorker is aio.AsyncWorker


def test_runners_that_are_written_twice_have_the_same_names() -> None:
    assert public(headwater.TimedRunner) == public(aio.AsyncTimedRunner)


@pytest.mark.parametrize("call", FIXED, ids=lambda call: call.__qualname__)
def test_a_signature_keeps_what_was_promised(call: Callable[..., Any]) -> None:
    parameters = dict(inspect.signature(call).parameters)
    parameters.pop("self", None)
    kind: Any = Parameter.POSITIONAL_OR_KEYWORD
    places = iter(list(parameters))
    for word in FIXED[call].split():
        name, equals, default = word.lstrip("*").partition("=")
        if not name:
            kind = Parameter.KEYWORD_ONLY
            continue
        found = parameters.pop(name)
        assert found.kind == (Parameter.VAR_POSITIONAL if word[0] == "*" else kind)
        if kind is Parameter.POSITIONAL_OR_KEYWORD:
            assert next(places) == name
        wanted = eval(default) if equals else Parameter.empty
        assert found.default == wanted
    for extra in parameters.values():
        assert extra.default is not Parameter.empty, f"{extra} breaks those who do not give it"


@pytest.mark.parametrize("kind", FIELDS, ids=lambda kind: kind.__name__)
def test_an_answer_keeps_its_fields(kind: type) -> None:
    assert set(FIELDS[kind]) <= public(kind)
    names = [name for name in inspect.signature(kind).parameters if name in FIELDS[kind]]
    assert tuple(names) == FIELDS[kind]


def test_every_public_method_says_what_it_does() -> None:
    for kind in (c for pair in PAIRS for c in pair):
        for name in public(kind):
            member = getattr(kind, name)
            if callable(member):
                assert member.__doc__, f"{kind.__name__}.{name}"


def test_importing_headwater_starts_nothing_and_brings_in_no_client() -> None:
    look = "import sys, headwater; print(*{'redis', 'pyarrow'} & set(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )
    assert said.stdout.strip() == ""
