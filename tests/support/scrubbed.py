"""Whether all that lies in a store agrees with itself."""

from __future__ import annotations

from headwater import Headwater


def assert_sound(hw: Headwater, *names: str) -> None:
    """Scrub the store, or the named objects; fails with what is wrong."""
    report = hw.scrub(*names)
    assert report.complete
    assert not report.defects, "\n".join(map(str, report.defects))
