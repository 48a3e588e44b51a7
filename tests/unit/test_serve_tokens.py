"""A token allows what its scope says, and without one a server listens on the loopback only."""

from __future__ import annotations

import pytest

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.http.authorization import authorize
from headwater.serve.http.messages import Refused
from headwater.serve.listening import ListenAddress, bound_address, url_of
from headwater.serve.tokens import Tokens

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
