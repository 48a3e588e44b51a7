"""What `headwater topic` promises: the commands of streams, on all partitions of a topic."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater import Topic
from tests.support.commands import Answer, line_of, run, running
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.stores import Stores
from tests.support.watch import let_pass


class TopicCommands:
    """Runs ``headwater topic COMMAND NAME ...`` on one topic."""

    def __init__(self, url: str, hw: headwater.Headwater, topic: Topic) -> None:
        self.url = url
        self.hw = hw
        self.topic = topic

    def __call__(self, command: str, *words: str, stdin: str | None = None) -> Answer:
        return run(self.url, "topic", command, self.topic.name, *words, stdin=stdin)


@pytest.fixture
def store_url(request: pytest.FixtureRequest, stores: Stores) -> str:
    return stores.url(getattr(request, "param", "embedded"))


@pytest.fixture
def command(store_url: str, name: str) -> Iterator[TopicCommands]:
    """A topic of three partitions."""
    url = store_url
    with headwater.connect(url) as hw:
        yield TopicCommands(url, hw, hw.topic(name, partitions=3))


def lengths(topic: Topic) -> list[int]:
    return [info.length for info in topic.info()]


def test_a_topic_is_created_listed_shown_and_deleted(command: TopicCommands) -> None:
    url, name = command.url, command.topic.name
    assert command("create").out == f"{name} has 3 partitions\n"
    assert command("create", "-p", "4").code == 1
    fresh = f"{name}-fresh"
    assert run(url, "topic", "create", fresh, "--partitions", "2", "--json").row == {
        "topic": fresh,
        "partitions": 2,
    }
    command.topic.write_many(entries(30))
    listed = {row["name"]: row for row in run(url, "topic", "list", "--json").rows}
    assert (listed[name]["length"], len(listed[fresh]["partitions"])) == (30, 2)
    assert [fresh, "2", "0"] in [
        line.split()[:3] for line in run(url, "topic", "list").out.splitlines()
    ]
    heading, _, *rows = command("info").out.splitlines()
    assert heading.split()[:4] == ["partition", "first", "last", "messages"]
    assert [row.split()[3] for row in rows] == [str(length) for length in lengths(command.topic)]
    assert command("info", "--json").row["length"] == 30
    assert command("delete", stdin="n\n").code == 1
    assert command("delete", "--yes", "--json").row == {"topic": name, "deleted": True}
    assert name not in command.hw.topics()


def test_messages_are_written_one_by_one_and_by_lines(command: TopicCommands) -> None:
    topic = command.topic
    place = topic.partition_of("ride-1")
    assert command("write", "ride-1", "hello").out == f"{place}:1\n"
    assert command("write", "ride-1", "again", "--json").row == {
        "topic": topic.name,
        "partition": place,
        "offset": 2,
    }
    lines = "".join(f"tag-{n}\tvalue {n}\n" for n in range(20))
    told = command("write", "--separator", "\t", "--batch", "7", "--json", stdin=lines).row
    spans = {int(part): (span["first"], span["last"]) for part, span in told["partitions"].items()}
    assert told["written"] == 20
    assert spans == {
        part: (3 if part == place else 1, length) for part, length in enumerate(lengths(topic))
    }
    assert command("write", "--tag", "t", stdin="a\nb\n").out.startswith("written 2 messages, ")


def test_messages_are_read_with_their_partition(command: TopicCommands) -> None:
    topic = command.topic
    assert command("read").err.startswith("nothing there")
    topic.write_many(entries(30, tags=20))
    rows = command("read", "--count", "100", "--json").rows
    assert [row["partition"] for row in rows] == sorted(row["partition"] for row in rows)
    assert len(rows) == 30
    heading, _, row = command("read", "-p", "1", "-o", "2", "-c", "1").out.splitlines()
    assert heading.split()[:2] == ["partition", "offset"]
    assert row.split()[:2] == ["1", "2"]
    line = command("read", "-p", "2", "-c", "1", "--format", "{partition}/{offset} {tag}").out
    (first,) = topic.partition(2).read(1, 1)
    assert first is not None
    assert line == f"2/1 {first.tag}\n"
    topic.partition(0).evict(2)
    gone = command("read", "-p", "0", "-o", "1", "-c", "3", "--json").rows[0]
    assert gone == {"partition": 0, "gone": {"first": 1, "last": 2}}
    for words in (["-o", "1"], ["--block-ms", "5"], ["-p", "1", "--group", "g"]):
        assert command("read", *words).code == 2
    assert command("read", "-p", "3").code == 1


def test_headers_are_shown_as_text_or_as_base64(command: TopicCommands) -> None:
    command.topic.write("t", b"1")
    command.topic.write("t", b"2", headers={"trace": b"abc"})
    command.topic.write("t", b"3", headers={"trace": b"abc", "raw": b"\xff"})
    plain, text, encoded = command("read", "--json").rows
    assert not {"headers", "headers_encoding"} & set(plain)
    assert (text["headers"], "headers_encoding" in text) == ({"trace": "abc"}, False)
    assert encoded["headers"] == {"trace": "YWJj", "raw": "/w=="}
    assert encoded["headers_encoding"] == "base64"


def test_a_group_is_looked_after_in_all_partitions(command: TopicCommands) -> None:
    topic = command.topic
    topic.write_many(entries(60, tags=30))
    taken = command("read", "--group", "g", "--count", "60", "--ack-ms", str(FAR), "--json").rows
    assert {row["attempt"] for row in taken} == {1}
    assert command("ack", "g", "0:1-3", "1:1").out == "acknowledged 4 pending messages\n"
    assert command("nack", "g", "2:1", "--json").row == {
        "topic": topic.name,
        "group": "g",
        "nacked": 1,
    }
    for word in ("1", "1:x"):
        assert command("ack", "g", word).code == 2
    rows = command("groups", "--json").rows
    assert [(row["group"], row["partition"]) for row in rows] == [("g", 0), ("g", 1), ("g", 2)]
    assert sum(row["pending"] for row in rows) == len(taken) - 4
    assert command("groups").out.split()[:3] == ["group", "partition", "next"]
    assert run(command.url, "topic", "groups").out.split()[:3] == ["topic", "group", "partition"]
    assert command("seek", "g", "first").out == "g reads on at 0:1, 1:1, 2:1\n"
    assert command("seek", "g", "4", "--partition", "1", "--json").row["next"] == {"1": 4}
    assert command("seek", "g", "-2", "--partition", "1", "--json").row["next"] == {"1": 2}
    assert command("seek", "g", "-1", "--json").row["next"] == {"0": 1, "1": 1, "2": 1}
    assert command("seek", "g", "4").code == 2
    beyond = command("seek", "g", "4000", "-p", "1")
    assert beyond.code == 1
    assert "(in partition 1)" in beyond.err
    assert command("remove-group", "g", "--yes").out == "removed g\n"


def test_a_group_is_set_up_in_all_partitions(command: TopicCommands) -> None:
    topic = command.topic
    topic.write_many(entries(30, tags=20))
    words = ("set-group", "g", "--start", "last", "--max-pending", "5", "--dead-letters")
    rows = command(*words, "--json").rows
    assert [(row["partition"], row["next"]) for row in rows] == [
        (place, length + 1) for place, length in enumerate(lengths(topic))
    ]
    assert command(*words).code == 1
    assert command("set-group", "g", "--max-pending", "0", "--ordered").code == 0
    facts = topic.group("g").info()
    assert {(info.max_pending, info.ordered) for info in facts} == {(None, True)}
    assert [info.dead_letters for info in facts] == [f"{topic.name}/{p}.g.dead" for p in range(3)]


def test_dead_letters_are_shown_and_given_back(command: TopicCommands) -> None:
    topic = command.topic
    topic.write_many(entries(30, tags=20))
    group = topic.group("g", dead_letters=True)
    group.read(0)
    assert command("dead", "g").out == "no dead letters\n"
    while group.read(100, ack_ms=FAR, expire_ms=1):
        pass
    let_pass(command.hw, 1)
    group.bury()
    rows = command("dead", "g", "--json").rows
    assert {(row["partition"], row["origin"]) for row in rows} == {
        (place, offset) for place in range(3) for offset in range(1, lengths(topic)[place] + 1)
    }
    assert command("dead", "g", "-c", "1").out.split()[:2] == ["partition", "origin"]
    assert command("discard", "g", "1:2-3", "0:1", "--json").row["discarded"] == 3
    assert command("discard", "g", "-c", "1").out == "discarded: 1\n"
    redriven = command("redrive", "g", "--count", "2", "--json").row["redriven"]
    assert [redriven[place]["redriven"] for place in "012"] == [2, 0, 0]
    by_partition = command("redrive", "g").out.removeprefix("redriven: ").split(", ")
    assert sum(int(part.partition(":")[2]) for part in by_partition) == 24


def test_a_mistyped_topic_or_group_is_told_what_was_meant(command: TopicCommands) -> None:
    name = command.topic.name
    command.topic.write("t", b"1")
    for words in (["info"], ["tail"], ["groups"], ["seek", "g", "first"]):
        answer = run(command.url, "topic", words[0], f"{name}x", *words[1:])
        assert answer.code == 1
        assert answer.err.endswith(f"did you mean {name!r}?\n")
    assert f"{name}x" not in command.hw.topics()
    command.topic.group("workers").read(0)
    assert "did you mean 'workers'?" in command("seek", "worker", "first").err


@pytest.mark.parametrize(
    "store_url",
    ["embedded", pytest.param("cluster", marks=pytest.mark.cluster)],
    indirect=True,
)
def test_a_tail_shows_the_newest_of_all_partitions_and_what_comes(command: TopicCommands) -> None:
    topic = command.topic
    for n in range(6):
        topic.write(f"tag-{n}", b"%d" % n)
        # Two of the same millisecond would be in the order of their partitions.
        let_pass(command.hw, 1)
    newest = command("tail", "--count", "2", "--json").rows
    assert [row["value"] for row in newest] == ["4", "5"]
    assert command("tail", "-c", "1", "--format", "{value}").out == "5\n"
    words = ("topic", "tail", topic.name, "--lines", "1", "--count", "4", "--format", "{value}")
    with running(command.url, *words) as tail:
        assert line_of(tail) == "5\n"
        for n in range(6, 9):
            topic.write(f"tag-{n}", b"%d" % n)
            assert line_of(tail) == f"{n}\n"
        assert tail.wait(60) == 0
