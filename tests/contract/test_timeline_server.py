"""The server speaks as Roshi's does, and says clearly what it will not do."""

from __future__ import annotations

import struct

import pytest

from headwater.timeline import Cursor
from tests.support.farms import Replica
from tests.support.timeline_http import Client, b64, element, records


def test_tuples_go_in_and_out_as_roshi_spells_them(roshi: Client) -> None:
    answer = roshi.insert(element("k", 1, "a"), element("k", 2.5, "b"), element("l", -3, "c"))
    assert answer.status == 200
    assert answer.body["inserted"] == 3
    assert answer.body["duration"][-1] == "s"
    found = roshi.select("k", "l", "nobody")
    assert found.body["records"] == {
        "k": [element("k", 2.5, "b"), element("k", 1, "a")],
        "l": [element("l", -3, "c")],
        "nobody": [],
    }
    assert set(found.body) == {"records", "duration"}
    gone = roshi.delete(element("k", 2.5, "b"), element("k", 0, "a"))
    assert (gone.status, gone.body["deleted"]) == (200, 2)
    assert records(roshi.select("k"), "k") == [(1, b64("a"))]


def test_every_way_to_name_keys_gives_the_same(roshi: Client) -> None:
    roshi.insert(element("k", 1, "a"), element(b"\xfb\xff", 1, "b"))
    expected = roshi.select("k", b"\xfb\xff").body["records"]
    assert roshi.ask("POST", "/select", [b64("k"), "+/8="]).body["records"] == expected
    for query in ("key=aw==&key=%2B%2F8%3D", "key=aw&key=-_8", "key=aw&key=+/8="):
        assert roshi.ask("GET", f"/?{query}").body["records"] == expected
    assert roshi.ask("GET", "/?key=aw", ["aw=="]).status == 400


def test_pages_by_offset_and_by_cursor_line_up(roshi: Client) -> None:
    roshi.insert(*(element("k", score // 3, f"m{score}") for score in range(12)))
    whole = records(roshi.select("k", query="limit=100"), "k")
    assert whole == sorted(whole, reverse=True)
    assert len(records(roshi.select("k"), "k")) == 10
    assert records(roshi.select("k", query="offset=4&limit=3"), "k") == whole[4:7]
    shown = roshi.select("k", query="limit=5&cursors=true").body["records"]["k"]
    assert [(row["score"], row["member"]) for row in shown] == whole[:5]
    start, stop = shown[1]["cursor"], shown[4]["cursor"]
    assert records(roshi.select("k", query=f"start={start}&limit=4"), "k") == whole[2:6]
    assert records(roshi.select("k", query=f"stop={stop}"), "k") == whole[:4]
    assert records(roshi.select("k", query=f"start={start}&stop={stop}"), "k") == whole[2:4]


def test_a_cursor_is_the_bits_of_the_score_and_the_member(roshi: Client) -> None:
    roshi.insert(element("k", 1.5, b"\xff\xfe"))
    (row,) = roshi.select("k", query="cursors=1").body["records"]["k"]
    bits, _, member = row["cursor"].partition("A")
    assert struct.pack(">Q", int(bits)) == struct.pack(">d", 1.5)
    assert member == "__4="
    assert Cursor.parse(row["cursor"]) == Cursor(1.5, b"\xff\xfe")


def test_coalesced_keys_are_one_list_newest_first(roshi: Client) -> None:
    roshi.insert(*(element(f"k{n % 3}", n // 2, f"m{n}") for n in range(12)))
    by_key = roshi.select("k0", "k1", "k2", query="limit=100").body["records"]
    merged = sorted(
        (row for rows in by_key.values() for row in rows),
        key=lambda row: (row["score"], row["member"]),
        reverse=True,
    )
    flat = roshi.select("k0", "k1", "k2", query="coalesce=true&limit=100")
    assert flat.body["records"] == merged
    part = roshi.select("k0", "k1", "k2", query="coalesce=true&offset=5&limit=4")
    assert part.body["records"] == merged[5:9]
    beyond = roshi.select("k0", query="coalesce=true&offset=50")
    assert beyond.body["records"] == []


def test_keys_that_are_not_utf8_round_trip_without_collision(roshi: Client) -> None:
    keys = [b"\xff", b"\xfe", "\ufffd".encode(), b"base64:/w==", b"a\x00b", b""]
    roshi.insert(*(element(key, n, "m") for n, key in enumerate(keys)))
    found = roshi.select(*keys).body["records"]
    assert len(found) == len(keys)
    assert {rows[0]["key"] for rows in found.values()} == {b64(key) for key in keys}
    assert set(found) >= {"\ufffd", "a\x00b", "", "base64:/w==", f"base64:{b64('base64:/w==')}"}
    for name, rows in found.items():
        encoded = name.removeprefix("base64:")
        assert (encoded if name != encoded else b64(name)) == rows[0]["key"]


BAD_BODIES = [
    b"",
    b"{}",
    b"nonsense",
    b'[{"key": "aw==", "score": 1}]',
    b'[{"key": "?", "score": 1, "member": "aw=="}]',
    b'[{"key": "aw==", "score": "1", "member": "aw=="}]',
    b'[{"key": "aw==", "score": NaN, "member": "aw=="}]',
    b'[{"key": "aw==", "score": 1e999, "member": "aw=="}]',
    b'[{"key": "aw==", "score": 9007199254740993, "member": "aw=="}]',
]


@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_bad_body_is_refused_and_nothing_is_written(
    roshi: Client, three: list[Replica], body: bytes
) -> None:
    for method in ("POST", "DELETE"):
        answer = roshi.ask(method, "/", body)
        assert answer.status == 400
        assert set(answer.body) == {"code", "description", "error"}
        assert (answer.body["code"], answer.body["description"]) == (400, "Bad Request")
    assert not any(replica.client.dbsize() for replica in three)


BAD_QUERIES = [
    "offset=-1",
    "offset=x",
    "limit=0",
    "limit=1.5",
    "limit=10000000",
    "coalesce=perhaps",
    "start=nonsense",
    "stop=1B",
    "offset=1&start=0A",
    "offset=0&stop=0A",
    "ofset=1",
    "limit=1&limit=2",
    "key=%3F",
    "key=%FF",
]


@pytest.mark.parametrize("query", BAD_QUERIES)
def test_a_bad_query_is_refused(roshi: Client, query: str) -> None:
    content = None if "key" in query else [b64("k")]
    answer = roshi.ask("GET", f"/?{query}", content)
    assert (answer.status, answer.body["code"]) == (400, 400)


def test_what_is_not_there_is_told(roshi: Client) -> None:
    assert roshi.ask("GET", "/nowhere").status == 404
    answer = roshi.ask("PUT", "/", [])
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST, DELETE")
    assert roshi.ask("HEAD", "/health").body == ""
    assert roshi.ask("GET", "/health").status == 200
