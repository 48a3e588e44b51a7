"""What a stream promises: dense offsets, positional reads, every byte back, scan equal to read."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import signal
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
import redis
import trustme
import uvloop
from hiredis import pack_command

from headwater import Headwater, InvalidInput, Message, Stream, connect
from headwater.store.aio_pipe import AsyncPipe, PackedCommands
from headwater.store.aio_store import AsyncStore
from tests.support.entries import entries, offsets, pairs
from tests.support.forwarder import Forwarder
from tests.support.servers import Server
from tests.support.watch import let_pass, server_ms

ODD = [
    ("", b""),
    ("", b"no tag"),
    ("no value", b""),
    ("bytes", bytes(range(256))),
    ("not utf-8", b"\xff\xfe\x80"),
    ("lines", b"a\r\nb\n\nc\0d"),
    ("tag\nwith\0control", b"x"),
    ("ünïcödé-標籤-🌊", "värde-価値".encode()),
    ("spaces and {braces}", b"HW\x01"),
    ("t" * 4096, b"v" * 70_000),
]
WAYS: dict[str, Callable[[Stream, list[tuple[str, bytes]]], Any]] = {
    "one by one": lambda s, rows: [s.write(tag, value) for tag, value in rows],
    "few at a time": lambda s, rows: [
        s.write_many(rows[i : i + 3]) for i in range(0, len(rows), 3)
    ],
    "packed": lambda s, rows: s.write_many(rows),
    "arrow": lambda s, rows: s.append(
        pa.table({"tag": [t for t, _ in rows], "value": [v for _, v in rows]})
    ),
}


def scanned(stream: Stream, start: int | None = None, stop: int | None = None) -> list[Message]:
    return [
        Message(row["offset"], row["tag"], row["value"], round(row["time"].timestamp() * 1000))
        for batch in stream.scan(start, stop)
        for row in batch.to_pylist()
    ]


def test_a_stream_that_was_never_written_reads_as_empty(stream: Stream) -> None:
    assert stream.read(1, 10) == []
    assert stream.read(77, 10) == []
    assert list(stream.scan()) == []
    assert stream.offset_at(0) == 1
    info = stream.info()
    assert (info.first, info.last, info.length, info.bytes) == (1, 0, 0, 0)
    assert not info.exists
    assert (stream.evict(5), stream.compact(), stream.seal(), stream.delete()) == (0, 0, 0, False)


def test_writing_nothing_changes_nothing(stream: Stream) -> None:
    assert stream.write_many([]) == range(0)
    assert stream.append(pa.table({"tag": [], "value": []})) == range(0)
    assert not stream.info().exists


@pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_comes_back(stream: Stream, way: str, sealed: bool) -> None:
    WAYS[way](stream, ODD)
    if sealed:
        assert stream.seal() == len(ODD)
    assert pairs(stream.read(1, 100)) == ODD
    assert pairs(scanned(stream)) == ODD
    assert pairs(stream.group("g").read(100)) == ODD


def test_a_str_value_is_stored_as_utf8(stream: Stream) -> None:
    stream.write("a", "naïve")
    stream.write_many([("b", "naïve"), ("c", b"bytes")])
    assert [m.value for m in stream.read(1, 3) if m] == ["naïve".encode()] * 2 + [b"bytes"]


def test_any_bytes_like_value_is_taken(stream: Stream) -> None:
    stream.write("a", bytearray(b"one"))  # type: ignore[arg-type]
    stream.write("a", memoryview(b"two"))  # type: ignore[arg-type]
    stream.write_many(entry for entry in [("a", b"three")])
    assert [m.value for m in stream.read(1, 3) if m] == [b"one", b"two", b"three"]


def test_large_values_are_cut_into_nodes_and_come_back_whole(stream: Stream) -> None:
    rows = [(f"big-{i}", bytes([i]) * 700_000) for i in range(12)]
    stream.write_many(rows)
    assert pairs(stream.read(1, 12)) == rows
    assert pairs(stream.read(5, 3)) == rows[4:7]
    assert pairs(scanned(stream)) == rows


def test_a_count_of_zero_reads_nothing_and_does_not_wait(stream: Stream) -> None:
    stream.write_many(entries(5))
    assert stream.read(1, 0) == []
    assert stream.read(1, 0, block_ms=60_000) == []
    assert stream.read(9, 0, block_ms=60_000) == []


def test_messages_carry_the_time_of_the_server(client: Headwater, stream: Stream) -> None:
    before = server_ms(client)
    stream.write("a", b"1")
    stream.write_many(entries(3))
    stream.write_many(entries(20))
    stream.write_many(entries(600))
    times = [m.time_ms for m in stream.read(1, 1000) if m]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= server_ms(client)
    assert stream.info().last_time_ms == times[-1]


def test_scan_gives_arrow_columns_of_one_schema(stream: Stream) -> None:
    stream.write("a", b"1")
    stream.write_many(entries(50))
    stream.write_many(entries(600))
    table = pa.Table.from_batches(list(stream.scan()))
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("offset", "int64"),
        ("tag", "string"),
        ("value", "binary"),
        ("time", "timestamp[ms, tz=UTC]"),
    ]
    assert table.column("offset").to_pylist() == list(range(1, 652))


def arrow_shapes() -> dict[str, Any]:
    plain = {"tag": ["a", "b", "c"], "value": [b"1", b"2", b"3"]}
    table = pa.table(plain)
    large = pa.schema([("tag", pa.large_string()), ("value", pa.large_binary())])
    times = [1_700_000_000_000, 1_700_000_000_001, 1_700_000_000_002]
    stamp = {
        unit: pa.array([t * 1000**shift // 1000**over for t in times], pa.timestamp(unit, zone))
        for unit, shift, over, zone in (
            ("ms", 0, 0, "UTC"),
            ("us", 1, 0, None),
            ("ns", 2, 0, "Europe/Berlin"),
        )
    }
    return {
        "table": table,
        "record batch": table.to_batches()[0],
        "chunked table": pa.concat_tables([table.slice(0, 1), table.slice(1, 2)]),
        "slice": pa.concat_tables([table, table]).combine_chunks().slice(3, 3),
        "large types": table.cast(large),
        "dictionary": table.set_column(0, "tag", table.column("tag").dictionary_encode()),
        "columns in another order": table.select(["value", "tag"]),
        "value as string": pa.table({"tag": ["a", "b", "c"], "value": ["1", "2", "3"]}),
        "time as int64": pa.table({**plain, "time": times}),
        **{f"time as {unit}": pa.table({**plain, "time": array}) for unit, array in stamp.items()},
    }


@pytest.mark.parametrize("shape", arrow_shapes())
def test_append_takes_arrow_data_of_many_types(stream: Stream, shape: str) -> None:
    assert stream.append(arrow_shapes()[shape]) == range(1, 4)
    messages = [m for m in stream.read(1, 9) if m]
    assert pairs(messages) == [("a", b"1"), ("b", b"2"), ("c", b"3")]
    if "time" in shape:
        assert [m.time_ms - 1_700_000_000_000 for m in messages] == [0, 1, 2]
    assert scanned(stream) == messages


def test_append_takes_a_table_of_many_chunks(stream: Stream) -> None:
    rows = entries(3000)
    tables = [
        pa.table(
            {"tag": [t for t, _ in rows[i : i + 77]], "value": [v for _, v in rows[i : i + 77]]}
        )
        for i in range(0, 3000, 77)
    ]
    assert stream.append(pa.concat_tables(tables)) == range(1, 3001)
    assert pairs(stream.read(1, 3000)) == rows


# Arrow takes it for text without a look at its bytes.
NO_TEXT = pa.array([b"\xff"], pa.binary()).view(pa.string())
NO_NAME = pa.MapArray.from_arrays([0, 1], NO_TEXT, [b""])


@pytest.mark.parametrize(
    "data",
    [
        pa.table({"tag": ["a"]}),
        pa.table({"value": [b"a"]}),
        pa.table({"tag": ["a"], "value": [b"1"], "more": [1]}),
        pa.table({"tag": ["a"], "value": [1]}),
        pa.table([["a"], [b"1"], [b"2"]], ["tag", "value", "value"]),
        pa.table({"tag": ["a", None], "value": [b"1", b"2"]}),
        pa.table({"tag": ["a", "b"], "value": [b"1", None]}),
        pa.table({"tag": ["a", "b"], "value": [b"1", b"2"], "time": [1, None]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": [-1]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": [2**60]}),
        pa.table({"tag": ["a"], "value": [b"1"], "time": ["yesterday"]}),
        pa.table({"tag": NO_TEXT, "value": [b"1"]}),
        pa.table({"tag": pa.concat_arrays([NO_TEXT] * 2000), "value": [b"1"] * 2000}),
        pa.table(
            {
                "tag": ["a"],
                "value": [b"1"],
                "headers": pa.MapArray.from_arrays([0, 1], NO_TEXT, [b""]),
            }
        ),
        {"tag": ["a"], "value": [b"1"]},
        None,
    ],
    ids=lambda data: str(getattr(data, "schema", data)).replace("\n", ", "),
)
def test_append_refuses_data_that_is_not_messages(stream: Stream, data: Any) -> None:
    with pytest.raises(InvalidInput):
        stream.append(data)
    assert not stream.info().exists


def test_streams_are_listed_while_they_exist(client: Headwater, name: str) -> None:
    names = [f"{name}.{i}" for i in (2, 1, 3)]
    for each in names:
        client.stream(each).write("a", b"1")
    assert [n for n in client.streams() if n.startswith(name)] == sorted(names)
    assert client.stream(names[0]).delete()
    assert [n for n in client.streams() if n.startswith(name)] == sorted(names[1:])


@pytest.mark.parametrize("size", [1, 700])
def test_a_stream_that_is_written_again_after_its_end_is_listed_again(
    size: int, store_url: str, name: str
) -> None:
    with connect(store_url) as hw, connect(store_url) as other:
        stream = hw.stream(name)
        stream.write("t", b"before")
        other.stream(name).delete()
        assert name not in hw.streams()
        stream.write_many(entries(size))
        assert name in hw.streams()
        other.stream(name).delete()
        stream.write("t", b"after")
        assert name in hw.streams()


def test_streams_of_similar_names_are_apart(client: Headwater, name: str) -> None:
    names = [name, f"{name}:tail", f"{name}:g:1:g", f"{name}/0", f"{name}.é", f"{name}[*]"]
    for place, each in enumerate(names):
        stream = client.stream(each)
        stream.write_many(entries(place + 1))
        stream.group("g").read(1, ack_ms=60_000)
    assert [client.stream(each).info().last for each in names] == [1, 2, 3, 4, 5, 6]
    assert [client.stream(each).group("g").info().pending for each in names] == [1] * 6


def test_a_deleted_stream_starts_again(client: Headwater, stream: Stream, name: str) -> None:
    stream.write_many(entries(1500), producer="p", sequence=1)
    stream.group("g").read(10, ack_ms=60_000)
    stream.register_reader("spark", 5)
    stream.retain(max_count=5000)
    other = client.stream(name)
    assert offsets(other.read(700, 2)) == [700, 701]

    assert stream.delete()
    assert not stream.delete()
    assert not stream.info().exists
    assert stream.read(1, 10) == []

    fresh = entries(1500, 5001)
    assert stream.write_many(fresh, producer="p", sequence=1) == range(1, 1501)
    assert pairs(other.read(700, 2)) == fresh[699:701]
    assert pairs(stream.group("g").read(1)) == fresh[:1]
    info = stream.info()
    assert (info.readers, info.groups) == ({}, ("g",))
    assert info.retention.max_count is None


def test_info_says_where_the_stream_stands(client: Headwater, stream: Stream) -> None:
    before = server_ms(client)
    stream.write_many(entries(100))
    stream.evict(30)
    stream.group("one").read(1)
    stream.group("two").read(1)
    stream.register_reader("spark", 42)
    stream.retain(max_count=1000, max_age_ms=10**10, max_bytes=10**9)
    info = stream.info()
    assert (info.name, info.first, info.last, info.length) == (stream.name, 31, 100, 70)
    assert info.bytes > 0
    assert set(info.groups) == {"one", "two"}
    assert info.readers == {"spark": 42}
    limits = info.retention
    assert (limits.max_count, limits.max_age_ms, limits.max_bytes) == (1000, 10**10, 10**9)
    assert before <= info.created_ms <= server_ms(client)
    assert info.exists


# A connection that many calls share: replies in order, and nobody waits for what cannot come.


Scene = Callable[[AsyncPipe], Awaitable[None]]


def play(
    server: Server, scene: Scene, timeout_s: float = 20.0, url: str = "", new_loop: Any = None
) -> None:
    async def run() -> None:
        store = await AsyncStore.open(url or server.url)
        pipe = await store.pipe(timeout_s)
        try:
            await scene(pipe)
        finally:
            pipe.abort(redis.ConnectionError("over"))
            await store.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def packed(*commands: tuple[Any, ...]) -> PackedCommands:
    return PackedCommands(b"".join(map(pack_command, commands)), len(commands), "test")


def echo(*texts: bytes) -> PackedCommands:
    return packed(*(("ECHO", text) for text in texts))


def test_each_call_gets_its_own_replies(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        large = b"x" * 3_000_000
        calls = [pipe.send(echo(b"%d" % n, b"more", large[: n * 1000])) for n in range(200)]
        calls.append(pipe.send(echo(large)))
        found = await asyncio.gather(*calls)
        assert found[:-1] == [[b"%d" % n, b"more", large[: n * 1000]] for n in range(200)]
        assert found[-1] == [large]

    play(server, scene)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_logged_in_and_encrypted_as_any_connection(new_loop: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with Server(tcp=True) as locked, Forwarder(locked.port, context) as door:
        locked.client().config_set("requirepass", "secret")

        async def scene(pipe: AsyncPipe) -> None:
            large = b"x" * 1_000_000
            calls = [pipe.send(echo(b"%d" % n, large)) for n in range(5)]
            assert await asyncio.gather(*calls) == [[b"%d" % n, large] for n in range(5)]
            (told,) = await pipe.send(packed(("CLIENT", "INFO")))
            assert b" db=3 " in told

        url = f"rediss://:secret@localhost:{door.port}/3?ssl_cert_reqs=none"
        play(locked, scene, url=url, new_loop=new_loop)


def test_an_error_is_that_of_its_call_alone(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        bad = pipe.send(packed(("ECHO", b"a"), ("NONSENSE",), ("ECHO", b"b")))
        good = pipe.send(echo(b"c"))
        with pytest.raises(redis.ResponseError, match="NONSENSE"):
            await bad
        assert await good == [b"c"]
        assert pipe.is_open

    play(server, scene)


def test_who_no_longer_waits_does_not_shift_the_replies_of_others(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        left, kept = pipe.send(echo(b"left", b"left")), pipe.send(echo(b"kept"))
        left.cancel()
        assert await kept == [b"kept"]

    play(server, scene)


def test_a_server_that_does_not_answer_is_given_up_for_all_who_wait(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        assert await pipe.send(echo(b"a")) == [b"a"]
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            found = await asyncio.gather(
                *(pipe.send(echo(b"b")) for _ in range(3)), return_exceptions=True
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [type(error) for error in found] == [TimeoutError] * 3
        assert not pipe.is_open
        with pytest.raises(TimeoutError):
            await pipe.send(echo(b"c"))

    play(server, scene, timeout_s=0.1)


def test_a_connection_that_breaks_is_told_to_all_who_wait(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        with contextlib.closing(server.client()) as client:
            (mine,) = await pipe.send(packed(("CLIENT", "ID")))
            waiting = [pipe.send(packed(("BLPOP", "nothing", 0))) for _ in range(2)]
            await asyncio.sleep(0)
            client.client_kill_filter(_id=mine)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, redis.ConnectionError | OSError) for error in found)
        assert not pipe.is_open

    play(server, scene)


def test_what_several_servers_answer_alike_is_read_once_and_right_for_each(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        # Answers of any size, in one piece or in many, the same as before or not.
        for size in (1, 100, 100_000, 1_000_000):
            get = packed(("GET", f"key-{size}"), ("GET", f"key-{size}"))
            for value in (b"a" * size, b"a" * size, b"b" * size, b"b" * size):
                await pipe.send(packed(("SET", f"key-{size}", value)))
                for _ in range(2):
                    calls = [pipe.send(get), pipe.send(get), pipe.send(echo(value)), pipe.send(get)]
                    found = await asyncio.gather(*calls)
                    assert found == [[value, value], [value, value], [value], [value, value]]
                assert await pipe.send(get) == [value, value]

    play(server, scene)


def append_times(stream: Stream, times: list[int], tags: list[str] | None = None) -> None:
    rows = entries(len(times))
    columns = {"tag": tags or [t for t, _ in rows], "value": [v for _, v in rows], "time": times}
    stream.append(pa.table(columns))


def first_at(stream: Stream, time_ms: int) -> int:
    """Look for it the long way."""
    last = stream.info().last
    rows = stream.read(1, last)
    return next((m.offset for m in rows if m and m.time_ms >= time_ms), last + 1)


def check_all(stream: Stream, times: list[int]) -> None:
    for time in sorted({0, *times, *(t + 1 for t in times), *(max(t - 1, 0) for t in times)}):
        assert stream.offset_at(time) == first_at(stream, time), f"at {time}"


def test_times_given_by_the_server_are_found(client: Headwater, stream: Stream) -> None:
    for size in (1, 3, 50, 600, 1):
        stream.write_many(entries(size))
        let_pass(client, 2)
    check_all(stream, sorted({m.time_ms for m in stream.read(1, 1000) if m}))


def test_a_datetime_is_taken_with_its_zone(stream: Stream) -> None:
    append_times(stream, [1_000, 2_000, 3_000])
    east = dt.timezone(dt.timedelta(hours=5))
    assert stream.offset_at(dt.datetime(1970, 1, 1, 0, 0, 2, tzinfo=dt.UTC)) == 2
    assert stream.offset_at(dt.datetime(1970, 1, 1, 5, 0, 2, tzinfo=east)) == 2


@pytest.mark.parametrize("time", [-1, 1.5, "now", None, True, 2**53, dt.datetime(2020, 1, 1)])  # noqa: DTZ001
def test_what_is_not_a_time_is_refused(stream: Stream, time: Any) -> None:
    with pytest.raises(InvalidInput):
        stream.offset_at(time)


MINUTE = timedelta(minutes=1)
MOMENT = timedelta(milliseconds=20)


def test_a_queue_takes_timedeltas(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    settings = queue.configure(backoff="fixed", backoff_ms=MOMENT)
    assert settings.backoff_ms == 20
    queue.push(b"late", delay_ms=MINUTE, ttl_ms=MINUTE)
    assert queue.pop(ack_ms=MINUTE) == []
    queue.push(b"a", dedupe="k", dedupe_ms=MINUTE)
    (taken,) = queue.pop(ack_ms=MINUTE, block_ms=MINUTE)
    assert queue.extend(taken, ack_ms=MOMENT) == 1
    let_pass(client, 20)
    assert queue.ack(taken) == 0


def test_a_channel_takes_timedeltas(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name, shards=1, ack_ms=MOMENT)
    channel.add({"a": 1.0})
    batch = channel.reserve(1)
    until = channel.renew(batch, ack_ms=MINUTE)
    assert until - batch.until_ms >= 50_000
    assert channel.release(batch, delay_ms=MINUTE) == 1
