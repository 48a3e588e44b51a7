"""Groups that keep order while any call of a server function fails: nothing is lost or stuck."""

from __future__ import annotations

import pytest

from tests.support import group_order_cases as cases
from tests.support.failing_calls import FailingServer
from tests.support.group_books import check, fail_each_call, kinds
from tests.support.group_cases import Deed, GroupCase, has_expired, started, write

pytestmark = [pytest.mark.fault, pytest.mark.slow]


def ack(*offsets: int) -> Deed:
    def operate(case: GroupCase) -> None:
        case.over |= {*offsets}
        case.group.ack(*offsets)

    return operate


CASES: dict[str, tuple[Deed, Deed]] = {
    "first read": (started, lambda case: case.read(3)),
    "read behind another": (cases.one_has_the_tag, lambda case: case.read(5)),
    "read behind what is not noted": (cases.one_has_the_first, lambda case: case.read(5)),
    "read on": (cases.one_has_the_first, cases.read_on),
    "read after all": (cases.all_is_done, lambda case: case.read(20)),
    "read after a stop": (cases.has_stopped, lambda case: case.read(20)),
    "read of many": (cases.has_many_ranges, lambda case: case.read(20)),
    "read what has expired": (has_expired, lambda case: case.read(10)),
    "ack": (cases.one_has_the_tag, ack(1, 2)),
    "ack before its turn": (cases.one_has_the_tag, ack(2, 4)),
    "ack over a link": (cases.ended_before_its_turn, ack(1)),
    "nack": (cases.one_has_the_tag, lambda case: case.group.nack(1, 3)),
    "bury": (cases.with_letters, lambda case: case.group.bury(1, error="no")),
    "seek": (cases.one_has_the_tag, lambda case: case.group.seek(1)),
    "write to one who waits": (cases.one_waits_in_order, write),
}
# Each of these has a neighbour that passes nearly the same calls.
LATER = {
    *("read of many", "read what has expired", "read after a stop", "nack", "seek", "bury"),
    *("ack", "ack before its turn"),
}


@kinds(CASES, LATER)
def test_whatever_fails_the_next_client_continues_in_order(
    failing: FailingServer, kind: str
) -> None:
    prepare, operate = CASES[kind]
    fail_each_call(failing, cases.ordered(prepare), operate, lambda case: check(case, operate))
