"""What ``headwater doctor`` says of a user whose rights are too few, and what rights are enough."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater.store import rights
from tests.support.commands import run
from tests.support.doctor import examine, found, grant, use_everything, verdicts
from tests.support.servers import Server


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(tcp=True, fsync="always", options={"requirepass": "opensesame"}) as server:
        yield server


def test_a_wrong_password_is_a_finding_and_is_not_shown(guarded: Server) -> None:
    url = f"redis://:wrong-word@127.0.0.1:{guarded.port}"
    code, report = examine(url)
    assert (code, verdicts(report)) == (1, {"access": "fail"})
    assert "wrong user name or password" in found(report, "access")
    assert "wrong-word" not in str(report) + run(url, "doctor").out


def test_the_rights_are_listed_even_when_access_is_denied(guarded: Server) -> None:
    url = grant(guarded, "~*", "+ping", "+client|setname")
    code, report = examine(url)
    assert (code, verdicts(report)) == (1, {"access": "fail"})
    assert "'info' command" in found(report, "access")
    answer = run(url, "doctor")
    assert "The user needs these rights: ~hw:* +client|setname +client|id" in answer.out
    assert "hidden-word" not in answer.out


def test_the_rights_that_are_listed_are_enough_for_everything(guarded: Server) -> None:
    url = grant(guarded, *rights.rules(cluster=False).split())
    code, report = examine(url)
    assert code == 0
    assert verdicts(report)["rights"] == "warn"
    assert verdicts(report)["persistence"] == "warn"
    assert "does not show" in found(report, "persistence")
    with headwater.connect(url) as hw:
        use_everything(hw)


def test_a_right_that_is_missing_is_named(guarded: Server) -> None:
    url = grant(guarded, "~hw:*", "+@all", "-xadd", "-memory")
    code, report = examine(url)
    assert (code, verdicts(report)["rights"]) == (1, "fail")
    assert found(report, "rights") == (
        "user limited lacks memory|usage, xadd; grant the rights below"
    )


def test_keys_that_are_out_of_reach_are_told(guarded: Server) -> None:
    code, report = examine(grant(guarded, "~other:*", "+@all"))
    assert (code, verdicts(report)["rights"]) == (1, "fail")
    assert "fcall" in found(report, "rights")
