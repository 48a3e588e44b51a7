"""A token allows what its scope says, and without one a server listens on the loopback only."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.declaring import Scope
from headwater.serve.batching import MOST_BYTES, MOST_ITEMS, SIDE_BY_SIDE, Batcher, BatchPart
from headwater.serve.http.authorization import authorize
from headwater.serve.http.messages import Refused, name_of_part, path_part
from headwater.serve.listening import ListenAddress, bound_address, url_of
from headwater.serve.tokens import (
    EVERYBODY,
    LOOK_S,
    Grant,
    TokenFile,
    Tokens,
    add_token,
    read_entries,
    remove_token,
)
from tests.support.servers import until

ALL = Tokens([("look", Scope.READ), ("change", Scope.WRITE), ("rule", Scope.ADMIN)])


def status(tokens: Tokens, authorization: str, needed: Scope) -> int:
    try:
        authorize(tokens, authorization, needed)
    except Refused as refused:
        return refused.status
    return 200


def test_a_wider_scope_includes_the_narrower() -> None:
    found = {
        token: [status(ALL, f"Bearer {token}", needed) for needed in Scope]
        for token in ("look", "change", "rule", "nobody", "")
    }
    assert found == {
        "look": [200, 403, 403],
        "change": [200, 200, 403],
        "rule": [200, 200, 200],
        "nobody": [401, 401, 401],
        "": [401, 401, 401],
    }


@pytest.mark.parametrize("authorization", ["", "look", "Basic look", "Bearer", "Bearerlook"])
def test_what_is_no_bearer_token_is_none(authorization: str) -> None:
    assert status(ALL, authorization, Scope.READ) == 401


def test_the_scheme_is_written_in_any_case() -> None:
    assert status(ALL, "bearer  look ", Scope.READ) == 200


def test_without_tokens_everybody_may_do_everything() -> None:
    assert status(Tokens(), "", Scope.ADMIN) == 200


def test_a_token_that_is_given_twice_has_its_widest_scope() -> None:
    found = Tokens([("t", Scope.WRITE), ("t", Scope.READ)]).find("t")
    assert found is not None
    assert found.widest == Scope.WRITE


def test_a_token_of_any_text_is_compared_and_not_an_error() -> None:
    assert ALL.find("schl\u00fcssel") is None
    assert ALL.find("\udcff") is None


@pytest.mark.parametrize("token", ["schl\u00fcssel", " t", "t ", "a b", "a\nb", "a\x7f", "\udcff"])
def test_a_token_that_clients_spell_in_different_ways_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput, match="not ASCII"):
        Tokens([(token, Scope.READ)])


def test_an_empty_token_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        Tokens([("", Scope.READ)])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "0:0::1"])
def test_the_loopback_needs_no_token(host: str) -> None:
    ListenAddress(host, 0).check(Tokens())


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "", "127.evil.example"]
)
def test_any_wider_address_needs_a_token(host: str) -> None:
    with pytest.raises(InvalidInput, match="give a token"):
        ListenAddress(host, 0).check(Tokens())
    ListenAddress(host, 0).check(ALL)


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="port"):
        ListenAddress("127.0.0.1", 70_000).check(ALL)


def test_an_address_that_is_not_ours_is_refused_with_its_name() -> None:
    with pytest.raises(InvalidInput, match=r"192\.0\.2\.1:1"):
        ListenAddress("192.0.2.1", 1).bind()


def test_processes_may_take_the_same_port() -> None:
    with ListenAddress("127.0.0.1", 0).bind() as first:
        first.listen()
        with bound_address(first).bind_again() as second:
            assert url_of(second, "http") == url_of(first, "http")
        assert url_of(first, "http").startswith("http://127.0.0.1:")


def test_a_port_on_which_another_server_listens_is_refused() -> None:
    with ListenAddress("127.0.0.1", 0).bind() as first:
        first.listen()
        address = bound_address(first)
        with pytest.raises(InvalidInput, match=rf"127\.0\.0\.1:{address.port}.*in use"):
            address.bind()
    address.bind().close()


# A file of tokens keeps digests only, allows by scope and pattern, and is read when it changes.


ORDERS = {Scope.READ: ["*"], Scope.WRITE: ["orders-*", "a.b"], Scope.ADMIN: ["orders-test"]}


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


@pytest.mark.parametrize(
    ("name", "widest"),
    [
        ("orders-1", Scope.WRITE),
        ("orders-", Scope.WRITE),
        ("orders-test", Scope.ADMIN),
        ("orders", Scope.READ),
        ("my-orders-1", Scope.READ),
        ("a.b", Scope.WRITE),
        ("axb", Scope.READ),
        ("orders-\n", Scope.WRITE),
        ("hw.audit", Scope.READ),
    ],
)
def test_a_scope_counts_on_names_that_match_its_patterns(name: str, widest: Scope) -> None:
    grant = Grant("billing", ORDERS)
    assert [scope for scope in Scope if grant.allows(scope, name)] == [
        scope for scope in Scope if scope <= widest
    ]


def test_only_the_pattern_of_everything_allows_what_concerns_the_whole_store() -> None:
    grant = Grant("billing", ORDERS)
    assert [grant.everywhere(scope) for scope in Scope] == [True, False, False]
    assert grant.widest is Scope.ADMIN
    assert Grant("nobody", {}).widest is None


def test_nobody_may_change_what_belongs_to_the_servers() -> None:
    assert EVERYBODY.allows(Scope.READ, "hw.audit")
    assert not EVERYBODY.allows(Scope.WRITE, "hw.audit")
    assert not EVERYBODY.allows(Scope.ADMIN, "hw.audit")


def test_a_token_is_made_once_and_only_its_digest_is_kept(path: Path) -> None:
    token = add_token(path, "billing", ORDERS)
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    tokens = TokenFile(path)
    grant = tokens.find(token)
    assert grant is not None
    assert grant.holder == "billing"
    assert grant.patterns(Scope.WRITE) == ("orders-*", "a.b")
    assert tokens.find(token[:-1]) is None
    assert tokens.find(read_entries(path)[0].sha256) is None
    with pytest.raises(InvalidInput, match="billing has a token"):
        add_token(path, "billing", ORDERS)
    with pytest.raises(InvalidInput, match="allows nothing"):
        add_token(path, "other", {Scope.READ: []})


def test_a_name_out_of_a_tokens_patterns_is_refused_with_403(path: Path) -> None:
    header = f"Bearer {add_token(path, 'billing', {Scope.WRITE: ['orders-*']})}"
    tokens = TokenFile(path)
    assert authorize(tokens, header, Scope.WRITE, "orders-1")
    assert authorize(tokens, header, Scope.READ)
    for needed, name in ((Scope.WRITE, "mail"), (Scope.ADMIN, "orders-1"), (Scope.ADMIN, None)):
        with pytest.raises(Refused) as refused:
            authorize(tokens, header, needed, name)
        assert refused.value.status == 403
    with pytest.raises(Refused) as refused:
        authorize(tokens, "Bearer hw_other", Scope.READ, "orders-1")
    assert refused.value.status == 401


def test_a_change_of_the_file_counts_within_a_second(path: Path) -> None:
    first = add_token(path, "first", ORDERS)
    clock = Clock()
    tokens = TokenFile(path, clock)
    grant = tokens.find(first)
    assert grant is not None
    second = add_token(path, "second", ORDERS)
    remove_token(path, "first")
    assert tokens.find(second) is None
    clock.now += LOOK_S
    assert tokens.find(second) is not None
    assert tokens.find(first) is None
    assert not tokens.still(grant)
    clock.now += LOOK_S
    remove_token(path, "second")
    assert tokens.find(second) is None, "the last token is gone, and still everybody needs one"
    assert tokens.required
    ListenAddress("0.0.0.0", 0).check(tokens)


def test_a_new_token_of_the_same_holder_does_not_prolong_the_old_one(path: Path) -> None:
    token = add_token(path, "billing", ORDERS)
    clock = Clock()
    tokens = TokenFile(path, clock)
    grant = tokens.find(token)
    assert grant is not None
    assert tokens.still(grant)
    remove_token(path, "billing")
    add_token(path, "billing", ORDERS)
    clock.now += LOOK_S
    assert not tokens.still(grant)


def test_a_change_is_noticed_although_the_file_has_its_old_size_and_time(path: Path) -> None:
    token = add_token(path, "billing", ORDERS)
    clock = Clock()
    tokens = TokenFile(path, clock)
    before = path.stat()
    changed = path.read_bytes().replace(b"orders-", b"others-")

    def change() -> bool:
        # As a copy does that keeps times; or a change of rights, after which it can be read.
        path.write_bytes(changed)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return path.stat().st_ctime_ns != before.st_ctime_ns

    until(change)
    clock.now += LOOK_S
    grant = tokens.find(token)
    assert grant is not None
    assert grant.allows(Scope.WRITE, "others-1")


@pytest.mark.parametrize("spoilt", ["", "{", '{"tokens": [{"holder": "x"}]}', None])
def test_a_file_that_is_spoilt_while_the_server_runs_changes_nothing(
    path: Path, spoilt: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    token = add_token(path, "billing", ORDERS)
    clock = Clock()
    tokens = TokenFile(path, clock)
    if spoilt is None:
        path.unlink()
    else:
        path.write_text(spoilt)
    clock.now += LOOK_S
    with caplog.at_level(logging.ERROR):
        assert tokens.find(token) is not None
    assert "stay as they were" in caplog.text


@pytest.mark.parametrize(
    "document",
    [
        {"tokens": []},
        {"tokens": [{"holder": "x", "sha256": "00"}]},
        {"tokens": [{"holder": "x", "sha256": "zz" * 32}]},
        {"tokens": [{"holder": "x", "sha256": "00" * 32, "read": ["a b"]}]},
        {"tokens": [{"holder": "x", "sha256": "00" * 32, "rea": ["*"]}]},
        {"tokens": [{"holder": "x", "sha256": "00" * 32, "read": "*"}]},
        [],
    ],
)
def test_a_file_that_is_not_one_is_refused_when_the_server_starts(
    path: Path, document: object
) -> None:
    path.write_bytes(msgspec.json.encode(document))
    with pytest.raises(InvalidInput):
        TokenFile(path)


def test_a_file_that_is_not_there_is_refused_with_the_cure(path: Path) -> None:
    with pytest.raises(InvalidInput, match="headwater token new"):
        TokenFile(path)


def test_two_programs_that_change_the_file_at_once_lose_nothing(path: Path) -> None:
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            try:
                add_token(path, f"holder-{number}", ORDERS)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert {entry.holder for entry in read_entries(path)} == {f"holder-{n}" for n in range(4)}


@pytest.mark.parametrize("place", ["nowhere/tokens.json", "a-file/tokens.json"])
def test_a_file_that_cannot_be_written_is_refused_with_a_cure(tmp_path: Path, place: str) -> None:
    (tmp_path / "a-file").touch()
    words = r"tokens\.json cannot be written \(.+\); use a file in a folder that you may write"
    with pytest.raises(InvalidInput, match=words):
        add_token(tmp_path / place, "billing", {Scope.READ: ["*"]})
    with pytest.raises(InvalidInput, match=words):
        remove_token(tmp_path / place, "billing")


# ── Requests of one moment go into one call, and each gets its own result, whatever happens ──────


def told_first(future: asyncio.Future[Any], result: Any, _at: int) -> None:
    future.set_result(result)


def run_batches(
    parts: list[list[int]], bad: dict[int, Exception], size: int = 0
) -> tuple[list[list[int]], list[Any]]:
    """Add all at once; returns the calls that were made, and the result of each part."""
    calls: list[list[int]] = []

    async def serve(items: list[int]) -> int:
        calls.append(items)
        await asyncio.sleep(0)
        for item in items:
            if item in bad:
                raise bad[item]
        return len(calls)

    async def run() -> list[Any]:
        batcher: Batcher[int, int] = Batcher(serve)
        told = [asyncio.get_running_loop().create_future() for _ in parts]
        for items, future in zip(parts, told, strict=True):
            batcher.add(BatchPart(items, partial(told_first, future), size))
        return await asyncio.gather(*told)

    results = asyncio.run(run())
    return calls, results


def test_parts_of_one_moment_are_one_call() -> None:
    assert run_batches([[1], [2, 3], []], {}) == ([[1, 2, 3]], [1, 1, 1])


def test_a_large_request_goes_alone() -> None:
    large = list(range(MOST_ITEMS))
    calls, _ = run_batches([[1], large, [2]], {})
    assert calls == [[1], large, [2]]


def test_a_call_has_no_more_bytes_than_it_may() -> None:
    calls, _ = run_batches([[1], [2], [3]], {}, MOST_BYTES // 2)
    assert calls == [[1, 2], [3]]


def test_what_does_not_fit_waits_until_a_call_ends() -> None:
    large = list(range(MOST_ITEMS))
    calls, told = run_batches([large] * (SIDE_BY_SIDE + 2), {})
    assert len(calls) == len(told) == SIDE_BY_SIDE + 2


def test_what_arrives_during_a_call_goes_together_and_does_not_wait_for_a_slow_one() -> None:
    calls: list[list[int]] = []

    async def run() -> None:
        loop, begun, slow = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def serve(items: list[int]) -> None:
            calls.append(items)
            if 1 in items:
                begun.set()
                await slow.wait()

        batcher: Batcher[int, None] = Batcher(serve)
        told = [loop.create_future() for _ in range(3)]
        batcher.add(BatchPart([1], partial(told_first, told[0])))
        await begun.wait()
        for number in (1, 2):
            batcher.add(BatchPart([number + 1], partial(told_first, told[number])))
            await asyncio.sleep(0)
        await asyncio.gather(*told[1:])
        assert not told[0].done()
        slow.set()
        await told[0]

    asyncio.run(asyncio.wait_for(run(), 60))
    assert calls == [[1], [2, 3]]


def test_each_request_of_a_call_that_fails_is_retried_alone() -> None:
    fault = StoreError("away")
    calls, told = run_batches([[1], [2], [3]], {2: fault})
    assert calls == [[1, 2, 3], [1], [2], [3]]
    assert [result is fault for result in told] == [False, True, False]


def test_an_error_that_nobody_foresaw_is_a_result_too() -> None:
    bug = ZeroDivisionError()
    assert run_batches([[1]], {1: bug})[1] == [bug]


def test_a_part_that_cannot_take_its_result_is_given_the_error_and_the_others_their_results() -> (
    None
):
    told: list[Any] = []

    async def run() -> None:
        all_told = asyncio.get_running_loop().create_future()

        async def serve(items: list[int]) -> int:
            return len(items)

        def broken(result: Any, _at: int) -> None:
            told.append(result)
            if isinstance(result, int):
                raise ZeroDivisionError

        batcher: Batcher[int, int] = Batcher(serve)
        batcher.add(BatchPart([1], broken))
        batcher.add(BatchPart([2], partial(told_first, all_told)))
        assert await all_told == 2

    asyncio.run(asyncio.wait_for(run(), 60))
    assert told[0] == 2
    assert isinstance(told[1], ZeroDivisionError)


# ── A name in the path of a request arrives as it was, whatever it is ────────────────────────────

# What the standard of URLs calls a single-dot or a double-dot path segment.
STEP = re.compile(r"(\.|%2e){1,2}", re.IGNORECASE)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("{.}", min_size=1)


@given(names)
@example(".")
@example("..")
@example("{..}")
@example("%2E%2E")
def test_a_name_arrives_as_it_was_and_is_no_step_of_a_path(name: str) -> None:
    part = path_part(name)
    assert name_of_part(part) == name
    assert not STEP.fullmatch(part)
    assert re.fullmatch(r"[\w.~%-]+", part, re.ASCII)


@pytest.mark.parametrize("part", ["..", "%2E%2e", "%7B..%7D", "{..}"])
def test_every_spelling_of_two_dots_is_understood(part: str) -> None:
    assert name_of_part(part) == ".."


@pytest.mark.parametrize("part", ["%7Ba%7D", "{}", "%7B", "{...}", "}..{"])
def test_other_braces_belong_to_the_name(part: str) -> None:
    assert name_of_part(part) == part.replace("%7B", "{").replace("%7D", "}")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(Refused, match="not UTF-8"):
        name_of_part("%FF")
