"""Commands that remove something for ever ask before they do."""

from __future__ import annotations

import pytest

import headwater
from tests.support.commands import run
from tests.support.stores import Stores


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


REMOVALS = [
    ("stream", "evict", "1"),
    ("stream", "remove-group", "g"),
    ("stream", "discard", "g"),
    ("stream", "delete"),
    ("topic", "remove-group", "g"),
    ("topic", "discard", "g"),
    ("topic", "delete"),
    ("queue", "purge"),
    ("queue", "discard"),
    ("queue", "delete"),
]


@pytest.fixture
def filled(url: str, name: str) -> None:
    """Make a stream, a topic and a queue of that name, with a dead letter in each."""
    with headwater.connect(url) as hw:
        hw.stream(name).write("t", b"v")
        hw.topic(name, partitions=1).write("t", b"v")
        group = hw.stream(name).group("g", dead_letters=True)
        group.bury(group.read(1, ack_ms=60_000))
        across = hw.topic(name).group("g", dead_letters=True)
        across.bury(across.read(1, ack_ms=60_000))
        queue = hw.queue(name)
        queue.configure(max_attempts=1)
        queue.push_many([b"a", b"b"])
        queue.nack(queue.pop(ack_ms=60_000))


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("words", REMOVALS, ids=" ".join)
def test_what_removes_for_ever_asks_and_a_no_changes_nothing(
    url: str, name: str, words: tuple[str, ...]
) -> None:
    kind, verb, *rest = words
    before = state(url, name)
    refused = run(url, kind, verb, name, *rest, stdin="n\n")
    assert refused.code == 1
    assert "[y/N]" in refused.err
    assert state(url, name) == before
    assert run(url, kind, verb, name, *rest, stdin="y\n").code == 0
    assert state(url, name) != before


def state(url: str, name: str) -> object:
    """Return what there is under a name."""
    with headwater.connect(url) as hw:
        found: list[object] = [hw.topics()]
        for stream in (hw.stream(name), hw.stream(f"{name}/0")):
            facts = stream.info()
            found += [facts.length, "g" in facts.groups and stream.group("g").info().dead]
        queue = hw.queue(name).stats()
        return [*found, queue.exists, queue.ready, queue.dead]


@pytest.mark.usefixtures("filled")
def test_without_a_terminal_a_question_names_the_option_that_answers_it(
    url: str, name: str
) -> None:
    refused = run(url, "queue", "delete", name)
    assert refused.code == 1
    *_, last = refused.err.splitlines()
    assert last == "error: nothing was removed; without a terminal, say --yes"


@pytest.mark.usefixtures("filled")
def test_dead_letters_that_are_named_are_discarded_without_a_question(url: str, name: str) -> None:
    (letter,) = run(url, "queue", "dead", name, "--json").rows
    assert run(url, "queue", "discard", name, letter["id"]).out == "discarded: 1\n"
    assert run(url, "stream", "discard", name, "g", "1").out == "discarded: 1\n"
