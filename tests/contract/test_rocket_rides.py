"""Rocket Rides: a run with faults ends with equal totals, and one that does not is found out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import headwater
from examples.rocket_rides import model
from examples.rocket_rides.faults import Fault
from headwater.outbox import Outbox
from tests.support.pages import ROOT
from tests.support.postgres import Postgres
from tests.support.servers import until
from tests.support.stores import Stores


def start(place: Path, *words: str) -> subprocess.Popen[str]:
    """Start the example without Spark; what it leaves behind, it leaves in ``place``."""
    return subprocess.Popen(
        [sys.executable, "-m", "examples.rocket_rides", "--spark", "off", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for the socket of a server."""
    with tempfile.TemporaryDirectory(prefix="hw-rides-") as directory:
        yield Path(directory)


def assert_agreed(process: subprocess.Popen[str], place: Path) -> str:
    out, err = process.communicate()
    assert (process.returncode, err) == (0, ""), out + err
    lines = out.splitlines()
    assert re.fullmatch(r"all totals agree at offset [1-9]\d*", lines[-1])
    assert not list(place.iterdir()), "it removes what it made"
    return out


def struck(out: str) -> dict[str, int]:
    """How often each fault struck, as the run has told in the end."""
    rows = [line.strip() for line in out.splitlines()]
    return {
        fault: int(row.split()[0])
        for fault in Fault
        for row in rows
        if re.match(rf"\d+ +{re.escape(fault)}( |$)", row)
    }


@pytest.mark.fault
def test_all_totals_agree_after_a_run_with_every_kind_of_fault(place: Path) -> None:
    certain = {Fault.CRASH, Fault.KILL, Fault.RESTART, Fault.DOUBLE_POST}
    total: Counter[str] = Counter()
    # One batch in ten ends in a crash: where the machine is slow, few large batches may miss it.
    for seed in ("7", "8", "9"):
        out = assert_agreed(start(place, "--rides", "200", "--seconds", "6", "--seed", seed), place)
        counts = struck(out)
        assert set(counts) == set(Fault)
        for victim in ("api", "streamer", "consumer0", "consumer1", "the store's server"):
            assert f"kill -9 {victim}" in out
        total.update(counts)
        if all(total[fault] for fault in certain):
            return
    pytest.fail(f"not every kind of fault has struck: {total}")


@pytest.mark.long
def test_without_faults_nothing_goes_wrong(place: Path) -> None:
    out = assert_agreed(start(place, "--rides", "30", "--seconds", "3", "--faults", "off"), place)
    assert set(struck(out).values()) == {0}
    assert "all totals agree at offset 30" in out


@pytest.mark.fault
@pytest.mark.slow
def test_all_totals_agree_on_postgres_and_a_given_store_and_again(
    place: Path, postgres: Postgres, stores: Stores
) -> None:
    database, store = postgres.database(), stores.url("plain")
    for _ in range(2):
        words = ("--rides", "60", "--seconds", "2", "--db", database, "--store", store)
        out = assert_agreed(start(place, *words), place)
        assert "kill -9 the store's server" not in out
    with headwater.connect(store) as hw:
        assert not [name for name in hw.streams() if name.startswith(model.STREAM)]
    postgres.drop(database)


def test_a_consumer_that_is_wrong_by_a_millimetre_fails_the_run(place: Path) -> None:
    database = f"sqlite:///{place / 'rides.db'}"
    process = start(place, "--rides", "60", "--seconds", "3", "--faults", "off", "--db", database)
    engine = sa.create_engine(database)
    spoil = (
        sa.update(model.totals)
        .where(model.totals.c.consumer == "consumer1")
        .values(distance_mm=model.totals.c.distance_mm + 1)
    )

    def spoiled() -> bool:
        try:
            with engine.begin() as conn:
                return conn.execute(spoil).rowcount == 1
        except sa.exc.OperationalError:
            return False  # there are no tables yet, or they are just being written

    try:
        until(spoiled, 60)
        out, err = process.communicate()
    finally:
        process.kill()
        engine.dispose()
    assert (process.returncode, err) == (1, "")
    assert "the totals do NOT agree" in out
    assert re.search(r"wrong: consumer1 has .* where the log has", out)
    (left,) = place.glob("rocket-rides-*")
    assert str(left) in out.splitlines()[-1]


def test_rows_of_another_application_are_left_alone(place: Path) -> None:
    database = f"sqlite:///{place / 'app.db'}"
    engine = sa.create_engine(database)
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        outbox.stage(conn, "orders", "order-1", b"precious")
    process = start(place, "--db", database)
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.startswith("error: the outbox of this database holds rows of another application")
    assert outbox.status().backlog == 1
    assert not sa.inspect(engine).has_table(model.rides.name)
    engine.dispose()


@pytest.mark.parametrize(
    "words",
    [
        ("--db", "nonsense"),
        ("--db", "postgresql://user:secret@127.0.0.1:1/name"),
        ("--store", "nonsense"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(place: Path, words: tuple[str, str]) -> None:
    process = start(place, *words)
    out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert re.fullmatch(r"error: .+\n", err)
    assert "secret" not in err
    assert not list(place.iterdir())
