"""A file of tokens keeps digests only, allows by scope and pattern, and is read when it changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec
import pytest

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.http.authorization import authorize
from headwater.serve.http.messages import Refused
from headwater.serve.listening import ListenAddress
from headwater.serve.tokens import (
    EVERYBODY,
    LOOK_S,
    Grant,
    TokenFile,
    add_token,
    read_entries,
    remove_token,
)
from tests.support.servers import until

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
