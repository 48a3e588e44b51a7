"""Headers that were staged are in the log with their messages; rows without any have none."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Headwater
from headwater.errors import InvalidInput
from headwater.kernel.headers import Headers, with_header
from headwater.outbox import Outbox, Streamer
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer
from tests.support.transactions import WAYS, transact

by_every_way = pytest.mark.parametrize(
    ("database_url", "way"),
    [(database, way) for database, ways in WAYS.items() for way in ways],
    indirect=["database_url"],
)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


def found_in(hw: Headwater, stream: str) -> list[tuple[str, bytes, Any]]:
    return [(m.tag, m.value, m.headers) for m in hw.stream(stream).read(1, 1000) if m]


def left(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return int(
            conn.scalar(sa.text("SELECT count(*) FROM headwater_outbox WHERE length(headers) > 0"))
            or 0
        )


@by_every_way
def test_headers_that_are_staged_come_with_the_message(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str, way: str
) -> None:
    other = f"{name}-other"
    many: list[Any] = [("t", b"3"), ("t", b"4", {"a": "ü", "b": bytes(range(256))}), ("t", b"5")]
    transact(
        way,
        engine,
        lambda conn: outbox.stage(conn, name, "t", b"1", headers={"a": b"1"}),
        lambda conn: outbox.stage(conn, other, "t", b"2"),
        lambda conn: outbox.stage_many(conn, name, many),
        lambda conn: outbox.stage(conn, other, "t", b"6", headers={"a": b"6"}),
        lambda conn: outbox.stage(conn, name, "t", b"7", headers={}),
    )
    assert left(engine) == 3
    assert streamer.run_once() == 7
    assert found_in(hw, name) == [
        ("t", b"1", {"a": b"1"}),
        ("t", b"3", {}),
        ("t", b"4", {"a": "ü".encode(), "b": bytes(range(256))}),
        ("t", b"5", {}),
        ("t", b"7", {}),
    ]
    assert found_in(hw, other) == [("t", b"2", {}), ("t", b"6", {"a": b"6"})]
    assert left(engine) == 0


def test_what_is_rolled_back_or_refused_leaves_no_headers(
    engine: sa.Engine, outbox: Outbox, name: str
) -> None:
    with engine.connect() as conn:
        outbox.stage(conn, name, "t", b"1", headers={"a": b"1"})
        conn.rollback()
        with pytest.raises(InvalidInput, match="header"):
            outbox.stage(conn, name, "t", b"1", headers={"hw.a": b"1"})
        with pytest.raises(InvalidInput, match="header"):
            outbox.stage_many(conn, name, [("t", b"1", {"a": b"1"}), ("t", b"1", {"": b""})])
        conn.commit()
    assert left(engine) == 0


def test_the_id_of_the_row_comes_as_a_header_when_asked(
    engine: sa.Engine, outbox: Outbox, make_streamer: MakeStreamer, hw: Headwater, name: str
) -> None:
    full = {"a": bytes(4000)} | {f"name-{n}": b"" for n in range(9)}
    copied = Headers.stored(with_header(b"", "hw.outbox-id", b"other"))
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"1"), ("t", b"2", {"z": b"2"}), ("t", b"3", full)])
        outbox.stage(conn, f"{name}-other", "t", b"4", headers=copied)
        ids = list(conn.scalars(sa.text("SELECT id FROM headwater_outbox ORDER BY id")))
    assert make_streamer(id_header=True).run_once() == 4
    first, second, third, fourth = ({"hw.outbox-id": b"%d" % number} for number in ids)
    assert found_in(hw, name) == [
        ("t", b"1", first),
        ("t", b"2", second | {"z": b"2"}),
        ("t", b"3", third | full),
    ]
    assert found_in(hw, f"{name}-other") == [("t", b"4", fourth)]
    (batch,) = hw.stream(name).scan(headers=True)
    assert hw.stream(f"{name}-copy").append(batch.drop_columns("offset")) == range(1, 4)
    assert found_in(hw, f"{name}-copy") == found_in(hw, name)
