"""Rows are right in every session: with our rule, or without it whatever the settings are.

The same queries run on the same rows in Parquet files, in the session of these tests, which has our
rule, and in a plain one, in which Spark pushes filters down by itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it

import headwater
from headwater.spark.engine.optimizer_rule import PUSHDOWN
from tests.support.entries import entries
from tests.support.spark.plans import plan_of
from tests.support.spark.predicates import LONG_SEEDS, answers

NAME = "any-session"
ROWS = 3000


class Frames(NamedTuple):
    """The same rows twice."""

    ours: DataFrame
    parquet: DataFrame


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        hw.stream(NAME).write_many(entries(ROWS // 2))
        hw.stream(NAME).write_many(entries(ROWS - ROWS // 2, ROWS // 2 + 1))
    return url


@pytest.fixture(scope="module")
def plain(spark: SparkSession) -> SparkSession:
    """A session that knows nothing of us but what Spark finds by itself."""
    fresh = spark.newSession()
    fresh.conf.set(PUSHDOWN, "true")
    return fresh


@pytest.fixture(scope="module")
def rows(spark: SparkSession, url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("rows") / "rows"
    spark.read.format("headwater").options(url=url, stream=NAME).load().write.parquet(str(place))
    return place


@pytest.fixture(scope="module", params=["with our rule", "plain"])
def frames(request: pytest.FixtureRequest, url: str, rows: Path) -> Frames:
    plain = request.param == "plain"
    session: SparkSession = request.getfixturevalue("plain" if plain else "spark")
    ours = session.read.format("headwater").options(url=url, stream=NAME).load()
    assert ("ColumnarToRow" in plan_of(ours)) is not plain
    return Frames(ours, session.read.parquet(str(rows)))


def test_branches_of_a_union_have_their_own_filters(frames: Frames) -> None:
    ours = frames.ours
    both = ours.where("offset < 5").union(ours.where("offset > 2950")).union(ours.limit(7))
    assert both.count() == 4 + 50 + 7


def test_sides_of_a_join_have_their_own_filters(frames: Frames) -> None:
    low = frames.ours.where("offset < 100").alias("low")
    high = frames.ours.where("offset > 2000").alias("high")
    joined = low.join(high, F.col("high.offset") == F.col("low.offset") + 2000)
    assert joined.count() == 99


def test_a_dataframe_can_be_used_again_after_a_filter(frames: Frames) -> None:
    ours = frames.ours
    few, others = ours.where("offset <= 10"), ours.where("tag = 'tag-3' AND offset > 20")
    found = (few.count(), others.count(), ours.count(), few.count())
    same = frames.parquet.where("tag = 'tag-3' AND offset > 20").count()
    assert found == (10, same, ROWS, 10)


def test_a_subquery_has_its_own_filters(frames: Frames) -> None:
    ours = frames.ours
    most = ours.where("offset < 500").agg(F.max("offset").alias("most"))
    assert ours.where(F.col("offset") > most.scalar()).count() == ROWS - 499


@pytest.mark.parametrize("seed", range(LONG_SEEDS if "HEADWATER_LONG" in os.environ else 1))
def test_any_filters_and_columns_give_the_rows_that_parquet_gives(
    frames: Frames, seed: int
) -> None:
    """Some predicates at once, each a branch of a union; by Connect, see test_versions.py."""
    ours, parquet = answers(frames.ours, frames.parquet, ROWS, NAME, seed)
    assert ours == parquet
