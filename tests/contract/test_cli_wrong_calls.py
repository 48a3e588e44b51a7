"""Wrong calls of commands: one line that names what was typed and the cure, and no exit code 0."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

import headwater
from tests.support.commands import run
from tests.support.stores import Stores

# What is typed behind `headwater`, its exit code, and what it must say. {s} is a stream with ten
# messages and the group g, {q} a queue, {t} a topic of four partitions, {c} a channel.
CALLS = [
    # Words that are no number, span, size, time, offset or id.
    ("stream read {s} --offset abc", 2, "for '--offset' / '-o': it must be a whole number; see "),
    ("stream read {s} --offset 0", 2, "for '--offset' / '-o': it must be 1 or more; see "),
    ("stream read {s} --block-ms 5y", 2, "'--block-ms': it must be milliseconds or a span like "),
    ("stream search {s} --max-time soon", 2, "for '--max-time': 'soon' is not a span of time like"),
    ("stream retain {s} --max-age 5y", 2, "for '--max-age': '5y' is not a span of time like 7d"),
    ("stream retain {s} --max-bytes 5XB", 2, "for '--max-bytes': '5XB' is not a size like 1000000"),
    ("stream set-group {s} g --start x", 2, "for '--start': 'x' is neither 'first', 'last', an "),
    ("stream seek {s} g never", 2, "for 'TO': 'never' is neither 'first', 'last', an offset nor"),
    ("stream seek {s} g 0001-01-01", 2, "for 'TO': '0001-01-01' is neither 'first', 'last',"),
    ("stream seek {s} g 9999-12-31T23:59:59-12:00", 0, ""),
    ("stream seek {s} g 0", 2, "for 'TO': 0 is not an offset; offsets are from 1 to "),
    ("stream ack {s} g x", 2, "for 'OFFSET': 'x' is not an offset like 5 or a range like 5-9; "),
    ("stream ack {s} g 9-5", 1, "the range 9-5 ends before it starts; swap its ends"),
    ("stream ack {s} g 99999999999999999999", 2, "for 'OFFSET': 99999999999999999999 is not an "),
    ("stream ack {s} g ٣", 2, "for 'OFFSET': '٣' is not an offset like 5"),
    ("stream evict {s} 99999999999999999999 --yes", 2, "for 'OFFSET': it must be 9007199254740991"),
    ("stream trace {s} x", 2, "for 'OFFSET': it must be a whole number; see "),
    (
        "stream dead {s} g --after x",
        2,
        "for '--after': 'x' is not a time like 2030-01-31T12:00:00Z",
    ),
    ("stream dead {s} g --before 0001-01-01", 2, "for '--before': '0001-01-01' is not a time like"),
    ("topic ack {t} g 5", 2, "for 'OFFSET': '5' is not a partition with an offset like 3:5 or a "),
    ("queue promote {q} xyz", 1, "'xyz' is neither the id nor the place of a message; give seve"),
    ("queue redrive {q} -- -5", 1, "'-5' is neither the id nor the place of a message; give sev"),
    ("queue discard {q} '' --yes", 1, "'' is neither the id nor the place of a message; give sev"),
    ("queue ack {q} x", 1, "'x' is not a receipt; copy it as pop gave it"),
    ("ick channel add {c} m --not-before 2030", 2, "'--not-before': '2030' is not a time like 203"),
    ("ick channel reserve {c} --ack-ms x", 2, "'--ack-ms': it must be milliseconds or a "),
    ("ick channel release {c} --delay-ms x", 2, "'--delay-ms': it must be milliseconds or a "),
    ("serve --max-body x", 2, "for '--max-body': 'x' is not a size like 1000000, 500MB or 2GiB; "),
    ("serve --resp-max-frame x", 2, "for '--resp-max-frame': 'x' is not a size like 1000000"),
    ("run shop:app --drain x", 2, "for '--drain': 'x' is not a span of time like 7d, 12h, 30m"),
    ("run shop:app --max-memory x", 2, "for '--max-memory': 'x' is not a size like 1000000, 500MB"),
    ("timeline select --instances h:1 k --start x", 2, "for '--start': 'x' is not a cursor; copy "),
    (
        "timeline insert --instances h:1 --horizon x k m",
        1,
        "--horizon: a score must be a number, not x; write it",
    ),
    # What the library refuses, by the name that was typed.
    ("stream read {s} --group g --expire-ms 9", 1, "--expire-ms needs --ack-ms: only what must be"),
    ("stream read {s} --group g --ack-ms 9999999999999999", 1, "--ack-ms must be from 1 to 31536"),
    ("stream nack {s} g 1 --delay-ms 99999999d", 2, "'--delay-ms': it must be 315360000000 or "),
    ("stream limit {s} g --rate fast", 1, "--rate must be a text such as '100/s', '10/m'"),
    ("stream limit {s} g --rate 0/s", 1, "the count of --rate must be from 1 to 1000000, not 0"),
    ("topic create {t}2 --partitions 99999", 1, "--partitions must be from 0 to 1024, not 99999"),
    ("topic read {t} --partition 9", 1, "--partition must be from 0 to 3, not 9"),
    ("queue pop {q} --count 99999999", 1, "--count must be from 0 to 100000, not 99999999"),
    (
        "ick channel reserve {c} --ack-ms 0",
        2,
        "'--ack-ms': it must be 1 or more",
    ),
    ("timeline insert --instances h:1 --quorum 5 k m", 1, "--quorum must be from 1 to 1, not 5"),
    ("timeline insert --instances h:1 --max-size 0 k m", 1, "--max-size must be from 1 to 1000000"),
    ("timeline insert --instances h:1 --hash md5 k m", 1, "--hash must be one of murmur3, fnv, "),
    ("timeline select --instances h:1 k --offset -1", 1, "--offset must be from 0 to 1000000, not"),
    ("timeline serve --instances h:1 --port 99999", 1, "--port must be from 0 to 65535, not 99999"),
    ("serve --max-connections 0", 1, "--max-connections must be from 1 to 1000000, not 0"),
    ("serve --head-ms 0", 1, "--head-ms must be from 1 to 315360000000, not 0"),
    ("serve --workers 0", 1, "--workers must be from 1 to 64, not 0"),
    ("top --history 99999", 1, "--history must be from 0 to 10000, not 99999"),
    # Bytes that are not UTF-8, as Python keeps them.
    ("stream write {s} t\udcff v", 1, "TAG 't\\udcff' is not UTF-8; encode it so"),
    (
        "stream read {s} --format '{{tag}}\udcff'",
        1,
        "--format '{{tag}}\\udcff' is not UTF-8; encode it",
    ),
    ("stream search {s} --text \udcff", 1, "--text '\\udcff' is not UTF-8; encode it so"),
    ("ick add k m\udcff", 1, "MEMBER 'm\\udcff' is not UTF-8; encode it so"),
    ("run \udcff:app", 1, "MODULE:APP '\\udcff:app' is not UTF-8; encode it so"),
    # Options that are missing, or exclude each other.
    ("stream replay {s}", 2, "give --into STREAM, --group GROUP, or both; see "),
    ("stream replay {s} --into y --first 9 --last 3", 2, "--last 3 is before --first 9; swap them"),
    ("stream replay {s} --into y --speed 0x", 2, "for '--speed': '0x' is not a speed like 1x, 10x"),
    (
        "stream replay {s} --into {s}",
        1,
        "a stream cannot be replayed into itself; name another one",
    ),
    ("stream write {s} t v --producer p", 2, "--producer and --sequence go together; see "),
    ("stream evict {s}", 2, "give either OFFSET or --keep; see "),
    ("topic seek {t} g 5", 2, "an offset is one of a partition; give --partition with it; see "),
    ("queue work {q} --exec ' '", 2, "for '--exec': it is empty; give the command that handles a "),
    (
        "timeline select --instances h:1 k --start 1A --offset 2",
        1,
        "--offset goes with neither --st",
    ),
    # Objects that there are not.
    ("stream read {s}x", 1, "there is no stream '{s}x'; did you mean '{s}'?"),
    (
        "stream set-group {s} other --max-pending 5",
        1,
        "stream '{s}' has no group 'other'; give --st",
    ),
    (
        "topic set-group {t} gg --max-pending 5",
        1,
        "topic '{t}' has no group 'gg'; did you mean 'g'?",
    ),
    ("topic seek {t} gg last", 1, "topic '{t}' has no group 'gg'; did you mean 'g'?\n"),
    ("topic seek {t} nobody first", 1, "topic '{t}' has no group 'nobody'; the first read of a "),
    ("topic pause {t} gg", 1, "topic '{t}' has no group 'gg'; did you mean 'g'?\n"),
    ("topic redrive {t} gg", 1, "topic '{t}' has no group 'gg'; did you mean 'g'?\n"),
    ("topic remove-group {t} gg --yes", 1, "topic '{t}' has no group 'gg'; did you mean 'g'?\n"),
    ("queue stats {q}x", 1, "there is no queue '{q}x'; did you mean '{q}'?"),
    ("keep --once --queue {q}x", 1, "there is no queue '{q}x'; did you mean '{q}'?"),
    ("letters list {q}x", 1, "there is neither a stream nor a queue '{q}x'; did you mean '{q}'?"),
    ("letters redrive nosuch-0", 1, "there is neither a stream nor a queue 'nosuch-0'; check the "),
    (
        "letters discard nosuch-0 --yes",
        1,
        "there is neither a stream nor a queue 'nosuch-0'; check",
    ),
    ("cron run nosuch", 1, "there is no timed job 'nosuch'; `headwater cron list` shows all"),
    ("job stop nosuch", 1, "there is no job 'nosuch'; `headwater job list` shows those that there"),
    (
        "consumer redrive nosuch:app c",
        1,
        "among what is installed; check the name, or change to th",
    ),
    # Places that cannot be used; a password is never printed.
    ("stream list --store nonsense", 1, "this is not a store URL; it begins with one of redis://"),
    (
        "upgrade --store redis://me:secret@127.0.0.1:1",
        1,
        "cannot reach the store at redis://127.0.0",
    ),
    (
        "demo --store redis://me:secret@127.0.0.1:1",
        1,
        "cannot reach the store at redis://127.0.0.1",
    ),
    (
        "top --store redis://me:secret@127.0.0.1:1",
        1,
        "cannot reach the store at redis://127.0.0.1:1",
    ),
    ("verify --note-in redi://me:secret@h", 1, "this is not a store URL; it begins with one of re"),
    (
        "outbox create --db mysql://me:secret@h/d",
        1,
        "mysql:// is not the URL of a database that is",
    ),
    (
        "outbox create --db postgresql://me:secret@127.0.0.1:1/d",
        1,
        "check that it runs and that the",
    ),
    (
        "outbox status --db sqlite:////nonexistent/x",
        1,
        "there is no such file; check that the URL ",
    ),
    ("token list --tokens /nonexistent", 1, "cannot be read (No such file or directory); make it "),
    ("--config /nonexistent stream list", 1, "/nonexistent"),
]


@pytest.fixture(scope="module")
def names(stores: Stores) -> Iterator[dict[str, str]]:
    found = {"s": "wrong-rides", "q": "wrong-mail", "t": "wrong-trips", "c": "wrong-dirty"}
    with headwater.connect(stores.url("plain")) as hw:
        stream, queue, topic = hw.stream(found["s"]), hw.queue(found["q"]), hw.topic(found["t"], 4)
        stream.write_many([("t", b"v")] * 10)
        stream.group("g").read(5, ack_ms=600_000)
        queue.push(b"1")
        topic.write("t", b"v")
        topic.group("g").read(1, ack_ms=600_000)
        hw.ick_channel(found["c"], shards=2).add({"m": 1.0})
        yield found
        for one in (stream, queue, topic):
            one.delete()


@pytest.mark.parametrize(("typed", "code", "said"), CALLS, ids=[ascii(call[0]) for call in CALLS])
def test_a_wrong_call_is_told_in_the_words_of_who_typed_it(
    stores: Stores, names: dict[str, str], typed: str, code: int, said: str
) -> None:
    answer = run(stores.url("plain"), *shlex.split(typed.format(**names)), stdin=b"")
    assert answer.code == code, answer.err
    assert said.format(**names) in answer.err
    assert "secret" not in answer.out + answer.err
    if code:
        assert answer.out == ""
        assert answer.err.startswith("error: ")
        assert answer.err.count("\n") == 1
