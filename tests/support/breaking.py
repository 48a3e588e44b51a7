"""Breaking what lies in a store, and what a scrub and a repair make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import redis

from headwater import Headwater
from tests.support.scrubbed import assert_sound

K = TypeVar("K")


class Break(NamedTuple, Generic[K]):
    """A way to break an object, and what a scrub says of it.

    ``break_`` is given the server's client and the keys of the object.
    """

    break_: Callable[[redis.Redis, K], object]
    kind: str
    place: str
    expected: str
    found: str
    repairs: bool = True


def assert_found_and_repaired(
    hw: Headwater, raw: redis.Redis, keys: K, case: Break[K], *names: str
) -> None:
    """Break an object; a scrub says where and what, and a repair, if there is one, cures it."""
    assert_sound(hw, *names)
    case.break_(raw, keys)
    found = hw.scrub(*names).defects
    mine = [d for d in found if d.kind == case.kind and d.place.startswith(case.place)]
    assert mine, found
    assert case.expected in mine[0].expected, mine
    assert case.found in mine[0].found, mine
    assert mine[0].cure
    assert (mine[0].repair is not None) == case.repairs, mine
    if case.repairs:
        assert len(found) == 1, found
        dry = hw.repair(*names)
        assert dry.repaired == ()
        assert dry.left == found, "a dry run changes nothing"
        report = hw.repair(*names, dry_run=False)
        assert report.repaired == found
        assert report.left == ()
        assert_sound(hw, *names)
