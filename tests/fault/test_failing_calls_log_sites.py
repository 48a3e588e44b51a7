"""The tests of failing calls reach every call of the functions of streams.

Each call that an operation passes fails in turn; so it is enough that every call is passed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType

import pytest

from tests.fault import test_failing_calls_log
from tests.support.failing_calls import FailingServer, Failure, Site, T

pytestmark = pytest.mark.fault

OF_STREAMS = r"^(stream_|topic_|1[567]-|2[05]-|30-)"
SHARED = r"^(registry|20-producers)"
# It tidies up on the way of an error, where nothing depends on it.
AFTER_AN_ERROR = {"15-append.lua HDEL"}
# A stream with many groups, whose calls the tests of groups fail.
MANY_GROUPS = {f"stream_info.lua {command}" for command in ("EXISTS", "RENAME", "ZADD", "ZRANGE")}


class PassedSites(FailingServer):
    """Runs each operation once, and notes what it passes."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[Site] = set()

    def fail_in_turn(
        self,
        prepare: Callable[[], T],
        operate: Callable[[T], object],
        check: Callable[[T, Failure], object],  # noqa: ARG002
        *,
        forgetting: bool = False,  # noqa: ARG002
    ) -> set[Site]:
        fresh = prepare()
        with self.armed(None) as passed:
            operate(fresh)
        self.passed |= set(passed)
        return set()


def all_runs(module: ModuleType) -> Iterator[tuple[Callable[..., None], dict[str, object]]]:
    """Give the tests of a module, with each set of their parameters."""
    for name, test in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("test_"):
            marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            choices = [[(mark.args[0], value) for value in mark.args[1]] for mark in marks]
            for chosen in product(*choices):
                yield test, dict(chosen)


def test_every_call_of_the_functions_of_streams_fails_in_a_test() -> None:
    with PassedSites() as server:
        for test, parameters in all_runs(test_failing_calls_log):
            test(server, **parameters)
        sites = server.sites("log", files=OF_STREAMS) | server.sites("store", files=SHARED)
        left = sites - server.passed
    names = {f"{site.file} {site.command}" for site in left}
    assert names <= AFTER_AN_ERROR | MANY_GROUPS, sorted(map(str, left))
