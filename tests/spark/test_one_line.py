"""An error of ours is one line in any session, also in one that shows the stack of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError, InvalidInput, WriteRefused
from headwater.spark.engine.failures import translated
from tests.support.spark.tables import small_table

HIDE = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with Spark's own setting: errors of Python come with their stack."""
    spark.conf.set(HIDE, "false")
    yield spark
    spark.conf.set(HIDE, "true")


@pytest.fixture
def save(plain: SparkSession, embedded_url: str, name: str, tmp_path: Path) -> Callable[..., None]:
    """Write rows to the log, a queue, or the table ``t`` of ids 0 to 29."""
    places = {
        "headwater": {"url": embedded_url, "stream": name},
        "headwater_queue": {"url": embedded_url, "queue": name},
        "headwater_sql": {"url": small_table(tmp_path), "table": "t"},
    }

    def save(kind: str, rows: str, **options: str) -> None:
        frame = plain.sql(rows).coalesce(1)
        frame.write.format(kind).mode("append").options(**places[kind], **options).save()

    return save


@pytest.mark.parametrize(
    ("kind", "rows", "error", "words"),
    [
        ("headwater", "SELECT 1 AS speed", InvalidInput, "column 'speed' has no place"),
        ("headwater", "SELECT string(NULL) AS value", InvalidInput, "a value that is null"),
        ("headwater_queue", "SELECT 'v' AS value, -1L AS ttl_ms", InvalidInput, "ttl_ms must be"),
        ("headwater_sql", "SELECT 1 AS speed", InvalidInput, "no column 'speed'"),
        ("headwater_sql", "SELECT id FROM range(2)", WriteRefused, "UNIQUE"),
    ],
    ids=["log plan", "log task", "queue task", "sql plan", "sql commit"],
)
def test_a_write_that_fails_is_told_in_one_line(
    save: Callable[..., None], kind: str, rows: str, error: type[HeadwaterError], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(kind, rows)
    assert isinstance(translated(caught.value), error)
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("kind", ["headwater", "headwater_sql"])
def test_a_query_that_is_refused_is_told_in_one_line(
    plain: SparkSession, kind: str, tmp_path: Path
) -> None:
    rows = plain.readStream.format("rate").load().select("value")
    writer = rows.writeStream.format(kind).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="did you mean 'url'") as caught:
        writer.option("urll", "x").start().awaitTermination(240)
    assert "Traceback" not in str(caught.value)
