"""A message is traced from the row of its outbox to its archive, and a row to its message."""

from __future__ import annotations

import html
import secrets
from pathlib import Path

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from headwater import Headwater
from headwater.cli.main import app
from headwater.outbox import Outbox, Streamer
from headwater.outbox.batches import KEPT, StagedRow, StreamedBatch
from headwater.serve.console.service import Console
from headwater.spark.archives.table import Archive, Contents, File
from headwater.spark.jobs.archive import reader_name
from headwater.store.presence import ARCHIVES, keep_notes
from headwater.views.traces import TraceStepView, TraceView
from tests.support.api import ApiServer
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


def staged_ids(engine: sa.Engine) -> list[int]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.text("SELECT id FROM headwater_outbox ORDER BY id")))


def test_the_ledger_leads_from_each_offset_to_its_row_and_back(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    other = f"{name}-other"
    for turn in range(3):
        with engine.begin() as conn:
            for n in range(4):
                outbox.stage(conn, name if n % 2 else other, "t", f"{turn}.{n}".encode())
        ids = staged_ids(engine)
        waiting = outbox.find_row(ids[0])
        assert isinstance(waiting, StagedRow)
        assert waiting.stream == other
        assert streamer.run_once() == 4
        for place, row in enumerate(ids):
            found = outbox.find_row(row)
            assert isinstance(found, StreamedBatch)
            assert found.stream == (name if place % 2 else other)
            offset = found.offset_of(row)
            assert offset is not None
            message = hw.stream(found.stream).read(offset, 1)[0]
            assert message is not None
            assert message.value == f"{turn}.{place}".encode()
            assert outbox.batch_of(found.stream, offset) == found
            assert found.row_of(offset) == row
            assert found.staged_first_ms is not None
            assert found.staged_first_ms <= found.claimed_ms
    assert outbox.find_row(10**9) is None
    assert outbox.batch_of(name, 10**6) is None


def test_the_ledger_keeps_the_newest_batches_alone(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, name: str
) -> None:
    with engine.begin() as conn:
        conn.execute(sa.text(f"UPDATE headwater_streamer SET batch = {3 * KEPT - 2}"))
    for value in (b"1", b"2", b"3"):
        with engine.begin() as conn:
            outbox.stage(conn, name, "t", value)
        streamer.run_once()
        with engine.begin() as conn:
            old = 2 * KEPT - 1
            copied = "SELECT batch - :back, stream, producer, first_offset, last_offset, first_id, "
            copied += "last_id, ids, staged_first_ms, staged_last_ms, claimed_ms "
            if value == b"1":
                statement = f"INSERT INTO headwater_batches {copied} FROM headwater_batches"
                conn.execute(sa.text(statement), {"back": 3 * KEPT - 1 - old})
    with engine.connect() as conn:
        kept = list(conn.scalars(sa.text("SELECT batch FROM headwater_batches ORDER BY batch")))
    assert kept == [3 * KEPT - 1, 3 * KEPT, 3 * KEPT + 1]


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_role_without_rights_on_the_ledger_streams_without_it(
    engine: sa.Engine, outbox: Outbox, hw: Headwater, name: str
) -> None:
    role = f"streamer_{secrets.token_hex(4)}"
    with engine.begin() as conn:
        conn.execute(sa.text(f"CREATE ROLE {role} LOGIN"))
        tables = "headwater_outbox, headwater_streamer"
        conn.execute(sa.text(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role}"))
        outbox.stage(conn, name, "t", b"1")
    limited = sa.create_engine(engine.url.set(username=role))
    with Streamer(Outbox(limited), hw) as streamer:
        assert streamer.run_once() == 1
    limited.dispose()
    assert outbox.batch_of(name, 1) is None


def test_a_repeated_batch_is_in_the_ledger_at_its_first_offsets(
    engine: sa.Engine, outbox: Outbox, hw: Headwater, name: str, make_streamer: MakeStreamer
) -> None:
    def die(step: str) -> None:
        if step.startswith("appended"):
            raise KeyboardInterrupt

    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"1")
    (row,) = staged_ids(engine)
    with pytest.raises(KeyboardInterrupt):
        make_streamer(steps=die).run_once()
    hw.stream(name).write("t", b"another")
    make_streamer().run_once()
    found = outbox.find_row(row)
    assert isinstance(found, StreamedBatch)
    assert found.offset_of(row) == 1


def steps_of(trace: TraceView) -> dict[str, TraceStepView]:
    return {f"{one.kind} {one.name}".strip(): one for one in trace.steps}


def test_a_trace_is_the_same_over_http_on_the_page_and_in_a_terminal(
    store_url: str, hw: Headwater, tmp_path: Path
) -> None:
    name = f"traced-{secrets.token_hex(4)}"
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = sa.create_engine(url)
    outbox = Outbox(engine)
    outbox.create_all()
    hw.stream(name).write("t", b"before")
    with engine.begin() as conn:
        for n in range(3):
            outbox.stage(conn, name, "t", b"%d" % n)
    row = staged_ids(engine)[1]
    Streamer(outbox, hw, id_header=True).run_once()
    group = hw.stream(name).group("mail", dead_letters=True)
    held = group.read(3, ack_ms=600_000)
    group.bury(held[2], error=ValueError("no address"))
    # An archive as the job leaves it, without Spark.
    place = str(tmp_path / "archive")
    reader = reader_name(place)
    file = File("day=2030-01-31/part-00012.parquet", 1, 4, 4, 100, 0, 0)
    archive = Archive(place, name)
    created = hw.stream(name).info().created_ms
    archive.commit(Contents(stream=name, created=created), 4, [file])
    hw.stream(name).register_reader(reader, 5)
    hw.store.run(keep_notes(ARCHIVES, {reader: place}, most=9, replace=True))
    with ApiServer(store_url, front=Console, db=url) as api:
        client = api.client()
        answer = client.get(f"/v1/streams/{name}/messages/3/trace")
        assert answer.status == 200, answer
        steps = {f"{one['kind']} {one['name']}".strip(): one for one in answer.body["steps"]}
        assert answer.body["row"] == row
        assert f"row {row}" in steps["outbox"]["text"]
        assert steps["batch"]["text"].startswith("batch 1 of outbox:")
        assert steps["batch"]["time_ms"] >= steps["outbox"]["time_ms"] > 0
        assert steps["log"]["text"] == "offset 3"
        assert steps["group mail"]["text"].startswith("dead after 1 attempts: ValueError")
        assert "part-00012.parquet" in steps[f"archive {reader.removeprefix('archive:')}"]["text"]
        page = html.unescape(client.get(f"/console/streams/{name}/messages/3").body.decode())
        for one in steps.values():
            assert one["text"] in page
        assert f"headwater stream trace {name} 3" in page
        found = client.get(f"/v1/outbox/rows/{row}").body
        assert found == {"row": row, "stream": name, "staged": False, "offset": 3, "batch": 1}
        gone = client.get(f"/console/search?q=row+{row}").headers["location"]
        assert client.get(gone).headers["location"] == f"/console/streams/{name}/messages/3"
        assert client.get("/v1/outbox/rows/999999").status == 404
        assert client.get("/console/outbox/rows/999999").status == 200
        for wrong in ("none", "%C2%B2", "9" * 19):
            assert client.get(f"/v1/outbox/rows/{wrong}").status == 400
        assert client.get(f"/v1/streams/{name}/messages/99/trace").status == 404
        assert client.get(f"/v1/streams/{name}/messages/0/trace").status == 404
    words = ["stream", "trace", "--row", str(row), "--db", url, "--store", store_url, "--json"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    told = steps_of(TraceView.from_json(said.stdout.encode()))
    assert {key: one.text for key, one in told.items()} == {
        key: one["text"] for key, one in steps.items()
    }
    without = CliRunner().invoke(app, ["stream", "trace", name, "1", "--store", store_url])
    assert "no database is at hand" in " ".join(without.output.split())
    for given in (["99"], [], ["1", "--row", "5"]):
        assert CliRunner().invoke(app, ["stream", "trace", name, *given]).exit_code != 0
    engine.dispose()
