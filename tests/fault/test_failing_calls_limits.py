"""Groups with limits while any call of a server function fails: nothing is lost, stuck or too much.

Every case is tried with each of its calls failing, once or from then on. Afterwards a client that
meets no failure repeats the operation, and everything comes; limits are still kept.
"""

from __future__ import annotations

import pytest

from headwater import Limits
from headwater.kernel.failures import Failure
from headwater.kernel.inputs import NO_LIMITS
from tests.support import group_cases as cases
from tests.support.failing_calls import FailingServer
from tests.support.group_books import check, fail_each_call, kinds, passed
from tests.support.group_cases import FAR, Deed, GroupCase, started

pytestmark = [pytest.mark.fault, pytest.mark.slow]

FILES = r"^(52-limits|group_limit)\.lua$"
# The messages of a case have one tag; of six that are read four come, and the others are kept back.
LIMITS = Limits(10, 4, "1000000/s burst 1000000", "1000000/s burst 1000000")
SLOW = Limits(rate="1/h burst 2", rate_per_key="1/h burst 2")


def limited(prepare: Deed, limits: Limits = LIMITS) -> Deed:
    """Prepare the same in a group with limits."""

    def within(case: GroupCase) -> None:
        case.group.limit(limits)
        prepare(case)

    return within


def ack(first: int, last: int) -> Deed:
    def operate(case: GroupCase) -> None:
        case.over |= set(range(first, min(last, 4) + 1))
        case.group.ack((first, last))

    return operate


def four_of_a_kind(case: GroupCase) -> None:
    """A member has as many messages of the tag as it may, and others are kept back."""
    started(case)
    case.read(6)
    case.read(6)


def letters_of_the_tag(case: GroupCase) -> None:
    case.options = {"dead_letters": True}
    four_of_a_kind(case)
    case.group.bury(1, 2, error="no")


def waits_for_a_slot(case: GroupCase) -> None:
    four_of_a_kind(case)
    case.wait("w1", wait_ms=5000)


def waits_for_a_token(case: GroupCase) -> None:
    started(case)
    case.read(2)


def discard(case: GroupCase) -> None:
    case.over |= {1, 2}
    case.group.discard()


def set_limits(limits: Limits) -> Deed:
    return lambda case: case.group.limit(limits)


CASES: dict[str, tuple[Deed, Deed]] = {
    "first read": (limited(started), lambda case: case.read(6)),
    "read what is kept back": (limited(four_of_a_kind), lambda case: case.read(6)),
    "read without a token": (limited(waits_for_a_token, SLOW), lambda case: case.read(2)),
    "wait for a token": (
        limited(waits_for_a_token, SLOW),
        lambda case: case.wait("w1", wait_ms=5000),
    ),
    "read without a slot": (
        limited(four_of_a_kind, Limits(max_in_flight=4)),
        lambda case: case.read(6),
    ),
    "ack": (limited(four_of_a_kind), ack(1, 4)),
    "ack to one who waits": (limited(waits_for_a_slot), ack(1, 1)),
    "ack many": (limited(four_of_a_kind, Limits(max_in_flight=4)), ack(1, 4000)),
    "nack": (limited(four_of_a_kind), lambda case: case.group.nack(1, 2)),
    "extend": (limited(four_of_a_kind), lambda case: case.group.extend(1, 2, ack_ms=2 * FAR)),
    "release": (limited(four_of_a_kind), lambda case: case.group.release(1, 2)),
    "fail": (limited(four_of_a_kind), lambda case: case.group.fail(Failure(1, "no", 0))),
    "redrive": (limited(letters_of_the_tag), lambda case: case.group.redrive()),
    "discard": (limited(letters_of_the_tag), discard),
    "set": (cases.has_read, set_limits(LIMITS)),
    "take off": (limited(four_of_a_kind), set_limits(NO_LIMITS)),
    "seek": (limited(four_of_a_kind), lambda case: case.group.seek(1)),
    "info": (limited(four_of_a_kind), lambda case: case.group.info()),
}
# Each of these has a neighbour that passes nearly the same calls.
LATER = {
    *("release", "fail", "seek", "info", "ack to one who waits", "read without a token"),
    *("discard", "nack", "ack many", "redrive", "read without a slot"),
}


@kinds(CASES, LATER)
def test_whatever_fails_the_next_client_continues_within_limits(
    failing: FailingServer, kind: str
) -> None:
    prepare, operate = CASES[kind]

    def check_within_limits(case: GroupCase) -> None:
        info = case.group.info()
        if info.limits.max_in_flight is not None:
            assert info.in_flight is not None
            assert info.in_flight <= info.limits.max_in_flight
        if info.limits.rate == SLOW.rate:
            # Its tokens would come in hours.
            case.group.limit(NO_LIMITS)
            check(case, lambda _: None)
        else:
            check(case, operate)

    fail_each_call(failing, prepare, operate, check_within_limits)


def test_the_cases_pass_every_call_of_what_keeps_limits(failing: FailingServer) -> None:
    left = failing.sites("log", files=FILES) - passed(failing, CASES)
    assert [f"{site.file}:{site.line} {site.command}" for site in left] == []
