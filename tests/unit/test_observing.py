"""How stores name operations and objects for instruments, whatever a key looks like."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater
from headwater.ick.keys import channel_key, ick_keys, shard_key
from headwater.kernel.instrument import (
    Event,
    also_installed,
    count,
    current,
    install,
    installed,
    observe,
)
from headwater.log.keys import STREAMS, box_key, stream_key, tail_key, topic_key
from headwater.queue import keys as queue_keys
from headwater.store.call import Call, Look, Many, Wait
from headwater.store.faults import Observed, RequestObservation, name_of, size_of
from tests.support.instruments import Recorder

WHERE = "redis://h:6379"
KEY = stream_key("rides")
BOX = box_key(KEY, "to:tals", "w")
MAIL = queue_keys.queue_key("mail")


def seen(request: Observed) -> tuple[str, str]:
    found = RequestObservation(Recorder(), request, WHERE)
    return found.name, found.object


@pytest.mark.parametrize(
    ("request_", "name", "owner"),
    [
        (Call("hw_stream_write", KEY), "stream.write", "rides"),
        (Call("hw_stream_offset_at", stream_key("rides/7")), "stream.offset_at", "rides/7"),
        (Call("hw_group_read", KEY, ("totals", "m")), "group.read", "rides/totals"),
        (Call("hw_topic_open", topic_key("rides")), "topic.open", "rides"),
        (Call("hw_queue_pop", MAIL), "queue.pop", "mail"),
        (Call("hw_ick_add", ick_keys("dirty", True)[0]), "ick.add", "dirty"),
        (Call("hw_channel_view", channel_key("dirty")), "channel.view", "dirty"),
        (Call("hw_channel_add", shard_key("a/b", 3, 12)), "channel.add", "a/b"),
        (Call("hw_registry_list", STREAMS), "registry.list", "streams"),
        (Call("hw_timeline_write", b"a key of somebody+"), "timeline.write", WHERE),
        (Call("hw_version", ""), "store.version", WHERE),
        (Wait(tail_key(KEY), ("XREAD",), 1), "stream.wait", "rides"),
        (Wait(BOX, ("BLPOP",), 1), "group.wait", "rides/to:tals"),
        (Wait(queue_keys.box_key(MAIL, "w"), ("BLPOP",), 1), "queue.wait", "mail"),
        (Look(KEY, ()), "stream.look", "rides"),
        (Many([]), "store.many", WHERE),
    ],
)
def test_an_operation_is_named_by_its_data_type_and_verb_and_its_object_by_its_own_name(
    request_: Observed, name: str, owner: str
) -> None:
    assert seen(request_) == (name, owner)


def test_every_server_function_has_a_name() -> None:
    lua = Path(headwater.__file__).parent.glob("*/lua/**/*.lua")
    functions = {name for file in lua for name in re.findall(r"'(hw_\w+)'", file.read_text())}
    assert len(functions) > 50
    names = {name_of(function) for function in functions}
    assert len(names) == len(functions)
    assert all(re.fullmatch(r"[a-z]+\.[a-z_]+", name) for name in names)


def test_bytes_are_those_of_the_texts_that_travel() -> None:
    assert size_of([b"123", "ä", 17, None, [b"4", ["56"]]]) == 3 + 2 + 1 + 2


def test_nothing_is_reported_without_an_instrument() -> None:
    assert current() is None
    assert observe("stream.write", "rides") is None
    count("store.retry", "disconnected")


def test_an_instrument_is_installed_for_a_while_and_the_one_before_comes_back() -> None:
    first, second = Recorder(), Recorder()
    install(first)
    try:
        with installed(second):
            observation = observe("a.b", "c")
            count("d.e", "f", 3)
        assert observation is not None
        observation.messages = 2
        observation.end("failed", ValueError())
        assert current() is first
    finally:
        install(None)
    assert (first.events, first.counts) == ([], {})
    (event,) = second.events
    assert event == Event("a.b", "c", "failed", event.seconds, 2, 0, "ValueError")
    assert second.counts == {("d.e", "f"): 3}


def test_a_reply_that_cannot_be_counted_is_reported_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(_: Call, reply: list[int]) -> int:
        return reply[17]

    recorder = Recorder()
    call = Call("hw_stream_read", KEY, read_only=True, messages=fails)
    RequestObservation(recorder, call, WHERE).succeed([])
    assert [(event.name, event.outcome) for event in recorder.events] == [("stream.read", "ok")]
    assert "stream.read" in caplog.text


def test_a_look_that_did_not_work_is_reported_as_retried() -> None:
    recorder = Recorder()
    RequestObservation(recorder, Look(KEY, ()), WHERE).succeed(None)
    assert [(event.name, event.outcome) for event in recorder.events] == [
        ("stream.look", "retried")
    ]


# ── Several instruments in one process: servers and programs beside each other ───────────────────


def test_instruments_beside_each_other_begin_and_end_in_any_order() -> None:
    first, second, own = Recorder(), Recorder(), Recorder()
    one, other = also_installed(first), also_installed(second)
    one.__enter__()
    other.__enter__()
    with installed(own):
        one.__exit__(None, None, None)
        observation = observe("queue.push", "jobs")
        assert observation is not None
        observation.end()
    other.__exit__(None, None, None)
    assert [len(found.events) for found in (first, second, own)] == [0, 1, 1]
    assert current() is None


# ── Operations reach for nothing but what they ask of their store: no clock, no chance, no I/O ───


SOURCE = Path(headwater.__file__).parent
# By these a module would reach around its store.
OUTSIDE = {
    *("asyncio", "concurrent", "multiprocessing", "os", "pathlib", "queue", "random", "secrets"),
    *("select", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "redis"),
}
MODULES = sorted(
    [file for part in ("log", "queue", "ick") for file in (SOURCE / part).glob("*.py")]
    + [SOURCE / "store" / f"{name}.py" for name in ("call", "many")]
    + [SOURCE / "outbox" / f"{name}.py" for name in ("consuming", "position", "status")]
)


def reached(module: Path) -> Iterator[str]:
    """Return what a module imports from outside, and the clocks that it reads."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield "time"


@pytest.mark.parametrize("module", MODULES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_operation_asks_its_store_for_time_chance_and_data(module: Path) -> None:
    assert not OUTSIDE & set(reached(module))
