"""The failing calls themselves: every call of the library has a site, and fails when it is told."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest

from headwater.errors import AccessDenied
from tests.support.contracts import FILES
from tests.support.failing_calls import FailingServer, Failure

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def failing() -> Iterator[FailingServer]:
    with FailingServer() as server:
        yield server


def test_every_call_of_every_file_has_a_site(failing: FailingServer) -> None:
    code = "".join(
        re.sub(r"--\[\[.*?\]\]|--[^\n]*", "", file.read_text("utf-8"), flags=re.DOTALL)
        for file in FILES
        if file.name != "scrub.lua"  # it runs what a scrub or a repair asks for
    )
    assert len(failing.sites()) == len(re.findall(r"redis\.p?call\(", code))
    assert {site.command for site in failing.sites()} == set(
        re.findall(r"redis\.p?call\(\s*'([A-Z]+)'", code)
    )
    assert re.findall(r"redis\.p?call\(\s*[^\s']", code) == [], "the command is a constant"


def test_nothing_fails_until_it_is_asked_to(failing: FailingServer) -> None:
    stream = failing.hw.stream(f"s-{secrets.token_hex(4)}")
    with failing.armed(None) as passed:
        assert stream.write("t", b"v") == 1
    assert [site.command for site in passed][:2], "the calls of a write are seen"


def test_a_call_fails_once_or_with_all_later_ones_of_its_command(failing: FailingServer) -> None:
    with failing.armed(Failure(1, lasting=False)), pytest.raises(AccessDenied):
        failing.hw.stream("a").info()
    for lasting in (False, True):
        with failing.armed(Failure(1, lasting)):
            with pytest.raises(AccessDenied):
                failing.hw.stream("a").info()
            if lasting:
                with pytest.raises(AccessDenied):
                    failing.hw.stream("b").info()
            else:
                assert failing.hw.stream("b").info().last == 0
