"""What Roshi's server accepts and this one refuses, unless it is lenient; by real requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.timeline import Cursor
from tests.support.farms import DEAD, Replica, one_each
from tests.support.timeline_http import Answer, Client, LocalServer, b64, element, serving

KEY, MEMBER = b64("k"), b64("m")
MEMBERS = ["e", "d", "c", "b", "a"]


@pytest.fixture
def servers(three: list[Replica]) -> Iterator[tuple[Client, Client]]:
    """Return clients of a strict server and a lenient one, on one farm with one timeline."""
    farm = one_each(three)
    with (
        LocalServer(farm, timeout_ms=20_000) as strict,
        LocalServer(farm, lenient=True, timeout_ms=20_000) as lenient,
    ):
        clients = Client(strict.port), Client(lenient.port)
        elements = (element("k", n - 2, m) for n, m in enumerate(reversed(MEMBERS)))
        assert clients[0].insert(*elements).status == 200
        strict.settle()
        yield clients
        for client in clients:
            client.close()


def members(answer: Answer) -> list[str] | dict[str, Any]:
    assert answer.status == 200, answer.body
    records = answer.body["records"]
    rows = records if isinstance(records, list) else records["k"]
    known = {b64(member): member for member in MEMBERS}
    return [known[row["member"]] for row in rows]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("nonsense=1", MEMBERS),
        ("cachebuster=17&limit=2", MEMBERS[:2]),
        ("limit=2&limit=3", MEMBERS[:2]),
        ("limit=x", MEMBERS),
        ("limit=1.5", MEMBERS),
        ("limit=99999999999999999999", MEMBERS),
        ("limit=10000000", MEMBERS),
        ("limit=%2B2", MEMBERS[:2]),
        ("limit=0", []),
        ("offset=x&limit=2", MEMBERS[:2]),
        ("offset=9999999", []),
        ("coalesce=perhaps", MEMBERS),
        ("coalesce=1&limit=0", []),
        ("cursors=perhaps", MEMBERS),
        ("key=%3F" + "a" * 5, None),
    ],
)
def test_a_query_that_is_refused_is_read_as_roshi_reads_it_when_lenient(
    servers: tuple[Client, Client], query: str, expected: list[str] | None
) -> None:
    strict, lenient = servers
    assert strict.select("k", query=query).status == 400
    if expected is None:
        assert lenient.select("k", query=query).status == 400
    else:
        assert members(lenient.select("k", query=query)) == expected


def test_a_negative_limit_shows_no_key_when_lenient(servers: tuple[Client, Client]) -> None:
    strict, lenient = servers
    assert strict.select("k", query="limit=-1").status == 400
    assert lenient.select("k", query="limit=-1").body["records"] == {}


def test_a_page_with_one_cursor_ends_at_zero_when_lenient(servers: tuple[Client, Client]) -> None:
    """Roshi's stop is the score 0 when none is given; here there is none."""
    strict, lenient = servers
    start = f"start={Cursor(2.0, b'e')}"
    assert members(strict.select("k", query=start)) == ["d", "c", "b", "a"]
    assert members(lenient.select("k", query=start)) == ["d", "c"]
    stop = f"stop={Cursor(-2.0, b'a')}"
    for client in servers:
        assert members(client.select("k", query=stop)) == ["e", "d", "c", "b"]
        assert members(client.select("k", query=f"{start}&{stop}")) == ["d", "c", "b"]
        assert client.select("k", query=f"offset=0&{start}").status == 400


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'["%b"] and more' % KEY.encode(), MEMBERS),
        (b'\n["%b"]["other"]' % KEY.encode(), MEMBERS),
        (b'["%b\\n"]' % KEY.encode(), MEMBERS),
        (b"[[107]]", MEMBERS),
    ],
)
def test_keys_in_other_spellings_are_read_when_lenient(
    servers: tuple[Client, Client], body: bytes, expected: list[str]
) -> None:
    strict, lenient = servers
    assert strict.ask("GET", "/", body).status == 400
    assert members(lenient.ask("GET", "/", body)) == expected


def test_no_keys_at_all_are_none_when_lenient(servers: tuple[Client, Client]) -> None:
    strict, lenient = servers
    assert strict.ask("GET", "/", b"null").status == 400
    assert lenient.ask("GET", "/", b"null").body["records"] == {}
    for client in servers:
        assert client.ask("GET", "/", b"[]").body["records"] == {}
        assert client.ask("GET", "/", b"").status == 400


def test_keys_in_the_body_count_and_those_in_the_query_are_ignored_when_lenient(
    servers: tuple[Client, Client],
) -> None:
    strict, lenient = servers
    query = f"/?key={b64('other')}"
    assert strict.ask("GET", query, [KEY]).status == 400
    assert list(lenient.ask("GET", query, [KEY]).body["records"]) == ["k"]
    for client in servers:
        assert list(client.ask("GET", query).body["records"]) == ["other"]


WRITES: list[tuple[bytes, dict[str, float]]] = [
    (b'[{"Key": "dw==", "SCORE": 7, "Member": "bQ=="}]', {"m": 7}),
    (b'[{"key": "dw==", "member": "bQ=="}]', {"m": 0}),
    (b'[{"key": "dw==", "score": null, "member": "bQ=="}]', {"m": 0}),
    (b'[{"key": "dw==", "score": 7}]', {"": 7}),
    (b'[{"key": [119], "score": 7, "member": [109]}]', {"m": 7}),
    (b'[{"key": "dw\\r\\n==", "score": 7, "member": "bQ=="}]', {"m": 7}),
    (b'[{"key": "dw==", "score": 7, "member": "bQ=="}]]', {"m": 7}),
    (
        b'[{"key": "dw==", "score": 1700000000123456789.0, "member": "bQ=="}]',
        {"m": 1700000000123456768},
    ),
    (
        b'[{"key": "dw==", "score": 1700000000123456789, "member": "bQ=="}]',
        {"m": 1700000000123456768},
    ),
    (b"null", {}),
]


@pytest.mark.parametrize(("body", "expected"), WRITES)
def test_tuples_in_other_spellings_are_written_when_lenient(
    servers: tuple[Client, Client], three: list[Replica], body: bytes, expected: dict[str, float]
) -> None:
    strict, lenient = servers
    assert strict.ask("POST", "/", body).status == 400
    assert not three[0].client.exists("w+")
    answer = lenient.ask("POST", "/", body)
    assert (answer.status, answer.body["inserted"]) == (200, len(expected))
    found = lenient.select("w").body["records"]["w"]
    assert {row["member"]: row["score"] for row in found} == {
        b64(member): score for member, score in expected.items()
    }
    assert lenient.ask("DELETE", "/", body).body["deleted"] == len(expected)
    assert lenient.select("w").body["records"]["w"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'["x"]',
        b'[{"key": "?", "score": 1, "member": "bQ=="}]',
        b'[{"key": "dw==", "score": "1", "member": "bQ=="}]',
        b'[{"key": "dw==", "score": true, "member": "bQ=="}]',
        b'[{"key": "dw==", "score": NaN, "member": "bQ=="}]',
        b'[{"key": "dw==", "score": 1e999, "member": "bQ=="}]',
        b'[{"key": "dw==", "score": 1%b, "member": "bQ=="}]' % (b"0" * 400),
        b'[{"key": [256], "score": 1, "member": "bQ=="}]',
        b"[" * 5000,
    ],
)
def test_what_roshi_refuses_is_refused_by_both(
    servers: tuple[Client, Client], three: list[Replica], body: bytes
) -> None:
    for client in servers:
        assert client.ask("POST", "/", body).status == 400
    assert not three[0].client.exists("w+", "+")


def test_any_path_is_the_root_when_lenient(servers: tuple[Client, Client]) -> None:
    strict, lenient = servers
    for path in ("/timelines", "/v1/", "/select"):
        assert strict.ask("GET", path, [KEY]).status in (404, 405)
        assert members(lenient.ask("GET", path, [KEY])) == MEMBERS
    assert strict.ask("POST", "/timelines", [element("p", 1, "m")]).status == 404
    assert lenient.ask("POST", "/timelines", [element("p", 1, "m")]).body["inserted"] == 1
    assert lenient.ask("DELETE", "/timelines", [element("p", 1, "m")]).body["deleted"] == 1
    assert strict.ask("GET", "/metrics/more").status == 404
    assert "headwater_" in lenient.ask("GET", "/metrics/more").body


def test_what_is_ours_stays_ours_in_both(servers: tuple[Client, Client]) -> None:
    for client in servers:
        assert members(client.ask("POST", "/select", [KEY])) == MEMBERS
        assert client.ask("GET", "/health").body["status"] == "ok"
        assert "headwater_select_call_count" in client.ask("GET", "/metrics").body
        assert client.ask("PUT", "/", []).status == 405
        assert client.ask("GET", "/debug/vars").status == 404
        assert client.select("k", query="offset=-1").status == 400
        assert client.select("k", query="start=nonsense").status == 400
        assert list(client.select(b"\xff").body["records"]) == ["base64:/w=="]


def test_records_are_in_one_order_and_pages_line_up_in_both(servers: tuple[Client, Client]) -> None:
    """Roshi shows equal scores in any order, and fails on more of them than it reads ahead."""
    strict, _ = servers
    ties = [f"m{n:03}" for n in range(300)]
    assert strict.insert(*(element("ties", 5, member) for member in ties)).status == 200
    expected = [b64(member) for member in reversed(ties)]
    start = f"start={Cursor(5.0, ties[10].encode())}&limit=5"
    for client in servers:
        page = client.select("ties", query="limit=300").body["records"]["ties"]
        assert [row["member"] for row in page] == expected
        rows = client.select("ties", query=start).body["records"]["ties"]
        assert [row["member"] for row in rows] == expected[-10:-5]


def test_a_farm_of_which_nothing_answers_is_an_error_in_both() -> None:
    """Roshi answers an empty success."""
    for lenient in (False, True):
        with serving(DEAD, lenient=lenient) as client:
            assert client.select("k").status == 500


def test_a_cluster_that_does_not_answer_is_shown_in_both(three: list[Replica]) -> None:
    for lenient in (False, True):
        with serving(f"{three[0].url};{DEAD}", write_quorum=1, lenient=lenient) as client:
            assert client.insert(element("k", 1, "m")).status == 200
            assert client.select("k").body["partial"] is True


def test_a_delete_that_one_cluster_knows_counts_in_both_and_is_repaired(
    three: list[Replica],
) -> None:
    """Roshi shows the insert that the other clusters have, and brings it back to the first."""
    for lenient in (False, True):
        three[0].client.zadd("k-", {"m": 5})
        for replica in three[1:]:
            replica.client.zadd("k+", {"m": 4})
        with LocalServer(one_each(three), lenient=lenient, timeout_ms=20_000) as server:
            client = Client(server.port)
            assert client.select("k").body["records"]["k"] == []
            server.settle()
            client.close()
        assert [replica.client.zscore("k-", "m") for replica in three] == [5] * 3
        assert not any(replica.client.exists("k+") for replica in three)
        three[0].client.flushall()


def test_a_delete_older_than_all_tombstones_counts_in_both(three: list[Replica]) -> None:
    """Roshi drops it when its set of deletes is full, and the insert stays."""
    for lenient in (False, True):
        farm = one_each(three)
        with serving(farm, lenient=lenient, max_size=2, timeout_ms=20_000) as client:
            client.insert(element("k", 1, "m"), element("k", 2, "n"))
            client.delete(element("k", 10, "x"), element("k", 11, "y"))
            client.delete(element("k", 5, "m"))
            rows = client.select("k").body["records"]["k"]
            assert [row["member"] for row in rows] == [b64("n")]
        three[0].client.flushall()


def test_a_limit_of_0_shows_nothing_by_any_strategy(three: list[Replica]) -> None:
    """Roshi shows all records for limit=0 when it reads one cluster only."""
    words: dict[str, Any] = {"read_strategy": "SendOneReadOne", "timeout_ms": 20_000}
    for lenient, status in ((False, 400), (True, 200)):
        with serving(one_each(three), lenient=lenient, **words) as client:
            client.insert(element("k", 1, "m"))
            answer = client.select("k", query="limit=0")
            assert (answer.status, answer.body.get("records", {}).get("k", [])) == (status, [])


def test_a_broken_escape_is_no_number(servers: tuple[Client, Client]) -> None:
    strict, lenient = servers
    assert strict.select("k", query="limit=%zz").status == 400
    assert members(lenient.select("k", query="limit=%zz")) == MEMBERS


def test_keys_and_members_over_their_size_are_refused_by_both(
    servers: tuple[Client, Client],
) -> None:
    for client in servers:
        assert client.insert(element(b"k" * 70_000, 1, "m")).status == 400
        assert client.insert(element("k", 1, b"m" * 1_100_000)).status == 400
        assert client.select(b"k" * 70_000).status == 400


def test_more_records_than_are_sent_at_once_are_refused_by_both(three: list[Replica]) -> None:
    keys = [f"k{n}" for n in range(101)]
    for lenient in (False, True):
        with serving(one_each(three), lenient=lenient, timeout_ms=20_000) as client:
            assert client.select(*keys, query="limit=10000").status == 400
            # A key shows no more than max_size, whatever the limit.
            assert client.select(*keys[:100], query="limit=1000000").status == 200
