"""Whether all that lies in a store agrees with itself, also after all tests."""

from __future__ import annotations

from typing import Final

import pytest

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
