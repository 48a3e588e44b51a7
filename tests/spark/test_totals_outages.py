"""A totals job that cannot have what it needs ends with one clear error, before it needs Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import headwater
from examples.rocket_rides.sums import SHAPE
from headwater.errors import DatabaseRefused, DatabaseUnreachable, StoreUnreachable
from headwater.spark.jobs.totals import totals
from headwater.store import faults
from tests.support.postgres import Postgres
from tests.support.servers import Server, free_ports

NO_SPARK: Any = None


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for a store for a moment only."""
    monkeypatch.setattr(faults, "PATIENCE_S", 0.5)


def add_up(url: str, db: str, *, available_now: bool = True) -> None:
    begun = time.monotonic()
    try:
        totals(NO_SPARK, "rides", url=url, db=db, shape=SHAPE, available_now=available_now)
    finally:
        assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("brief")
def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable):
        add_up(f"redis://127.0.0.1:{free_ports(1)[0]}", f"sqlite:///{tmp_path / 'app.db'}")


@pytest.mark.parametrize("available_now", [True, False])
def test_a_database_that_does_not_exist_is_an_error(
    available_now: bool, embedded_url: str, postgres: Postgres
) -> None:
    with pytest.raises(DatabaseRefused, match="does not exist"):
        add_up(
            embedded_url,
            f"postgresql://postgres@/nope?host={postgres.directory}",
            available_now=available_now,
        )


@pytest.mark.parametrize("place", ["127.0.0.1:1/app", "/app?host=/nowhere"])
def test_a_database_that_is_not_there_is_an_error(place: str, embedded_url: str) -> None:
    with pytest.raises(DatabaseUnreachable):
        add_up(embedded_url, f"postgresql://u:hush-hush@{place}")


def test_a_folder_that_is_not_there_is_an_error_whatever_is_asked_for(
    embedded_url: str, tmp_path: Path
) -> None:
    for available_now in (True, False):
        with pytest.raises(DatabaseUnreachable, match="no folder"):
            add_up(
                embedded_url,
                f"sqlite:///{tmp_path / 'none' / 'app.db'}",
                available_now=available_now,
            )


def test_an_outage_of_a_run_that_ends_by_itself_is_waited_out_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.2)
    monkeypatch.setattr("headwater.spark.jobs.totals.PATIENCE_S", 1.0)
    with Server(tcp=True) as server:
        with headwater.connect(server.url) as hw:
            hw.stream("rides").write("t", b"{}")

        class Dying:
            """Stands where a session stands, and takes the store away with its first use."""

            @property
            def readStream(self) -> Any:  # noqa: N802  as Spark calls it
                server.kill()
                raise StoreUnreachable(server.url, "it died")

        spark: Any = Dying()
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable):
            totals(
                spark,
                "rides",
                url=server.url,
                db=f"sqlite:///{tmp_path / 'app.db'}",
                shape=SHAPE,
                available_now=True,
            )
        assert 1.0 <= time.monotonic() - begun < 20
