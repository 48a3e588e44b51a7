"""The option ``schema``: JSON values become columns, and columns become values on the way out.

What Spark's own from_json and to_json make of the same rows is the measure.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

import headwater
from headwater import InvalidInput
from headwater.spark.engine.columns import parse_ddl
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.optimizer_rule import PUSHDOWN

NAME = "decoded-values"
DDL = (
    "id bigint, rider struct<name: string, stops: array<date>>, `fare paid` decimal(10,2), "
    "tag double, at timestamp, ok boolean"
)
ROWS = 3000
MISFITS = (b"", b"null", b"no JSON", b'{"id":1.5}', b'{"id":1},{"id":2}', b'{"tag":"1"}', b'{"id":')


def _value(place: int) -> bytes:
    if place % 100 < len(MISFITS) and place > 200:
        return MISFITS[place % 100]
    if place % 10 == 3:
        return b'{"id":%d,"other":[1,{"id":2}]}' % place
    rider = f'{{"name":"ü\\"\\n{place}","stops":["2026-01-31",null]}}'
    return (
        f'{{"id":{place}, "rider":{rider},\n "fare paid":{place}.25,"tag":{place}.5,'
        '"at":"2026-01-31T12:00:00.5+02:00","ok":true}'
    ).encode()


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        # As a node, and as plain entries.
        hw.stream(NAME).write_many([("t", _value(place)) for place in range(ROWS - 2)])
        hw.stream(NAME).write("t", _value(ROWS - 2))
        hw.stream(NAME).write("t", b"\xff")
    return url


def _decoded(session: SparkSession, url: str) -> DataFrame:
    options = {"url": url, "stream": NAME, "columns": "offset,value", "schema": DDL}
    return session.read.format("headwater").options(**options).load()


@pytest.fixture(params=["with our rule", "plain"])
def frame(request: pytest.FixtureRequest, spark: SparkSession, url: str) -> DataFrame:
    session = spark
    if request.param == "plain":
        session = spark.newSession()
        session.conf.set(PUSHDOWN, "true")
    return _decoded(session, url)


def test_values_are_the_columns_that_from_json_makes_of_them(frame: DataFrame) -> None:
    theirs = f"from_json(cast(value AS string), '{DDL}')"
    names = ["id", "rider", "`fare paid`", "tag", "at", "ok"]
    fits = frame.where("_corrupt_record IS NULL")
    same = [f"theirs.{name} <=> {name}" for name in names]
    # A column of a value that has the name of one of ours is compared with nothing of ours.
    low = fits.where("offset <= 500 AND tag >= 0 AND _corrupt_record IS NULL")
    counted = fits.selectExpr("*", f"{theirs} AS theirs").where(" AND ".join(same)).count()
    misfits = [place for place in range(ROWS - 1) if _value(place) in MISFITS]
    assert counted == fits.count() == ROWS - 1 - len(misfits)
    assert low.count() == sum(
        b'"tag":' in _value(place) for place in range(500) if place not in misfits
    )
    assert frame.count() == ROWS


def test_a_value_that_does_not_fit_is_kept_as_it_is(frame: DataFrame) -> None:
    found = frame.where("_corrupt_record IS NOT NULL").orderBy("offset").collect()
    wanted = [value for value in map(_value, range(ROWS - 1)) if value in MISFITS]
    assert [row._corrupt_record.encode() for row in found[:-1]] == wanted
    assert found[-1]._corrupt_record == "\N{REPLACEMENT CHARACTER}"
    assert {row.id for row in found} == {None}
    # Whatever of it is asked for: the column that fits is null with the one that does not.
    assert frame.where("offset > 200 AND id = 1").count() == 0


def test_a_table_and_a_query_decode_and_encode(
    spark: SparkSession, url: str, name: str, tmp_path: Path
) -> None:
    options = {"url": url, "stream": NAME, "columns": "offset,stream,partition", "schema": DDL}
    words = ", ".join(f"{key} '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TABLE decoded USING headwater OPTIONS ({words})")
    try:
        assert spark.sql("SELECT rider.name FROM decoded WHERE id = 5").collect() == [('ü"\n5',)]
    finally:
        spark.sql("DROP TABLE decoded")
    query = (
        spark.readStream.format("headwater")
        .options(**options)
        .load()
        .writeStream.format("headwater")
        .options(url=url, stream=name, schema=DDL, checkpointLocation=str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    again = spark.read.format("headwater").options(**{**options, "stream": name}).load()
    was = spark.read.format("headwater").options(**options).load()
    assert again.drop("stream").exceptAll(was.drop("stream")).count() == 0
    assert again.count() == ROWS
    with headwater.connect(url) as hw:
        messages = hw.stream(name).read(1, 400)
    values = [message.value for message in messages if message]
    assert (values[3], values[301]) == (b'{"id":3}', MISFITS[1])


def test_columns_that_cannot_be_are_refused_with_the_cure(spark: SparkSession, url: str) -> None:
    def read(**options: str) -> None:
        spark.read.format("headwater").options(url=url, stream=NAME, **options).load()

    def write(sql: str, **options: str) -> None:
        rows = spark.sql(sql).write.format("headwater").options(url=url, stream="w", **options)
        rows.mode("append").save()

    with (
        pytest.raises(InvalidInput, match=r"'tag' is in .*'stream,partition,offset,time'"),
        translating_errors(),
    ):
        read(schema="id int, Tag string")
    with pytest.raises(InvalidInput, match=r"the type 'map'.*use from_json"), translating_errors():
        read(schema="id map<string, int>")
    with (
        pytest.raises(InvalidInput, match="a type was expected at its end in 'id'"),
        translating_errors(),
    ):
        read(schema="id")
    with pytest.raises(InvalidInput, match="goes with 'schema'"), translating_errors():
        read(columnNameOfCorruptRecord="bad")
    with pytest.raises(InvalidInput, match="no column 'id' of the option"), translating_errors():
        write("SELECT 1 AS x", schema="id int")
    with (
        pytest.raises(InvalidInput, match=r"'id' is bigint, and int.*\.cast\('int'\)"),
        translating_errors(),
    ):
        write("SELECT 1L AS id", schema="id int")
    with pytest.raises(InvalidInput, match="column 'value' is there"), translating_errors():
        write("SELECT 1 AS id, 'v' AS value", schema="id int")
    with pytest.raises(InvalidInput, match="column 'more' has no place"), translating_errors():
        write("SELECT 1 AS id, 2 AS more", schema="id int")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "ddl",
    [
        DDL,
        "a INT NOT NULL COMMENT 'x, y', b:string",
        "`a ``b` decimal, c numeric(5), d struct<e: array<struct<f: timestamp_ntz>>>, g real",
    ],
)
def test_ddl_means_what_it_means_to_spark(ddl: str) -> None:
    theirs = DataType.fromDDL(ddl)
    assert parse_ddl(ddl).simpleString() == theirs.simpleString()
