"""Whether all that lies in a store agrees with itself."""

from __future__ import annotations

from headwater import Headwater


def assert_sound(hw: Headwater, *names: str) -> None:
    """Scrub the store, or the named objects; fails with what is wrong."""
    report = hw.scrub(*names)
    assert report.complete
    assert not report.defects, "\n".join(map(str, report.defects))


def assert_streams_sound(hw: Headwater, *names: str) -> None:
    """Scrub those of the named streams that were written; a scrub refuses any other name."""
    if written := set(names) & set(hw.streams()):
        assert_sound(hw, *written)
