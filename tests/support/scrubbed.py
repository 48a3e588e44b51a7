"""Whether all that lies in a store agrees with itself, also after all tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

import pytest
import redis

from headwater import Headwater

# Which test has made the objects that have a name in theirs; None for one that damages them.
_MAKERS: Final[dict[str, str | None]] = {}


def note_maker(name: str, test: pytest.Item) -> None:
    """Note which test names its objects so, and whether it damages them on purpose."""
    damages = test.get_closest_marker("damages") is not None
    _MAKERS[name] = None if damages else test.nodeid


def assert_left_sound(urls: list[str]) -> None:
    """Scrub what the tests have left in their stores; fails with each finding and its test."""
    findings = []
    for url in urls:
        with Headwater(url) as hw:
            for defect in hw.scrub().defects:
                where = f"{defect.name} {defect.place}"
                name = next((name for name in _MAKERS if name in where), "")
                if (test := _MAKERS.get(name, "a test without the fixture name")) is not None:
                    findings.append(f"{test}\n    left in {url} {defect}")
    assert not findings, "\n".join(findings)


def assert_sound(hw: Headwater, *names: str) -> None:
    """Scrub the store, or the named objects; fails with what is wrong."""
    report = hw.scrub(*names)
    assert report.complete
    assert not report.defects, "\n".join(map(str, report.defects))


def assert_streams_sound(hw: Headwater, *names: str) -> None:
    """Scrub those of the named streams that were written; a scrub refuses any other name."""
    if written := set(names) & set(hw.streams()):
        assert_sound(hw, *written)


# ── Breaking what lies in a store, and what a scrub and a repair make of it ──────────────────────


K = TypeVar("K")


class Break(NamedTuple, Generic[K]):
    """A way to break an object, and what a scrub says of it.

    ``break_`` is given the server's client and the keys of the object. The ``defect`` is the kind
    of the object, the beginning of the place, and a part of what is expected and of what is found.
    """

    break_: Callable[[redis.Redis, K], object]
    defect: tuple[str, str, str, str]
    repairs: bool = True


def assert_found_and_repaired(
    hw: Headwater, raw: redis.Redis, keys: K, case: Break[K], *names: str
) -> None:
    """Break an object; a scrub says where and what, and a repair, if there is one, cures it."""
    assert_sound(hw, *names)
    case.break_(raw, keys)
    found = hw.scrub(*names).defects
    kind, place, expected, actual = case.defect
    mine = [d for d in found if d.kind == kind and d.place.startswith(place)]
    assert mine, found
    assert expected in mine[0].expected, mine
    assert actual in mine[0].found, mine
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
