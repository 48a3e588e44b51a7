"""Names that begin with ``hw.`` are Headwater's own: nobody else makes an object of such a name."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import headwater
from headwater.errors import InvalidInput
from tests.support.servers import Server

OWN = "hw.audit.dead"
ROWS = pa.record_batch({"tag": ["t"], "value": [b"v"]})


def _taken_by_a_group(hw: headwater.Headwater) -> None:
    hw.stream("hw").write("t", b"v")
    # Its dead letters would be in hw.audit.dead.
    hw.stream("hw").group("audit", dead_letters=True)


WAYS: dict[str, Callable[[headwater.Headwater], object]] = {
    "write": lambda hw: hw.stream(OWN).write("t", b"v"),
    "write_many": lambda hw: hw.stream(OWN).write_many([("t", b"v")]),
    "append": lambda hw: hw.stream(OWN).append(ROWS),
    "stage": lambda hw: hw.stream(OWN).stage(ROWS, "staging"),
    "letters of a group": _taken_by_a_group,
    "letters by name": lambda hw: hw.stream("s").group("g", dead_letters=OWN),
    "topic": lambda hw: hw.topic(OWN).write("t", b"v"),
    "queue": lambda hw: hw.queue(OWN).push(b"v"),
    "queue settings": lambda hw: hw.queue(OWN).configure(max_attempts=3),
    "dirty list": lambda hw: hw.ick(OWN).add({"member": 1.0}),
    "channel": lambda hw: hw.ick_channel(OWN).add({"member": 1.0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_of_headwaters_own_is_refused_before_anything_changes(
    server: Server, way: str
) -> None:
    with headwater.connect(server.url) as hw, server.client() as admin:
        with pytest.raises(InvalidInput, match=r"begin with 'hw\.' are Headwater's own; choose"):
            WAYS[way](hw)
        assert admin.keys(f"*{OWN}*") == []
        assert not any(name.startswith("hw.") for name in (*hw.streams(), *hw.queues()))
