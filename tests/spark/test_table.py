"""Tables of SQLite and Postgres come into Spark exactly, cut into ranges.

Most tests read in this process, by the reader that Spark would ship to its tasks; those that are
about Spark's part take the session.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, StructField, StructType

import headwater
from headwater import Stream
from headwater.errors import HeadwaterError, InvalidInput, QueryRefused, ValueMisfit
from headwater.spark.log.batch_reader import FilteringReader
from headwater.spark.log.range_reader import CountedRange
from headwater.spark.log.source import HeadwaterSource
from tests.support.entries import entries
from tests.support.postgres import Postgres
from tests.support.spark.table_reads import Read, read_here
from tests.support.spark.times import write_at

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)


def test_every_type_keeps_its_value(read_table: Read, engine: sa.Engine) -> None:
    table = sa.Table(
        "kinds",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("fare", sa.Numeric(12, 2)),
        sa.Column("free", sa.Boolean),
        sa.Column("ratio", sa.Double),
        sa.Column("raw", sa.LargeBinary),
        sa.Column("day", sa.Date),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("doc", sa.JSON),
    )
    table.create(engine)
    row = {
        "id": 2**62,
        "name": "Ærø ' \" %",
        "fare": Decimal("1234567890.12"),
        "free": True,
        "ratio": 0.1,
        "raw": b"\x00\xff",
        "day": NOON.date(),
        "at": NOON,
        "doc": {"a": [1, None]},
    }
    with engine.begin() as connection:
        connection.execute(table.insert(), [row, dict.fromkeys(row) | {"id": 1}])
    frame = read_table(table="kinds")
    assert [kind for _, kind in frame.dtypes] == [
        "bigint",
        "string",
        "decimal(12,2)",
        "boolean",
        "double",
        "binary",
        "date",
        "timestamp",
        "string",
    ]
    empty, full = frame.orderBy("id").withColumn("at", f.unix_micros("at")).collect()
    micros = int(NOON.timestamp()) * 10**6 + 123456
    wanted = row | {"at": micros, "doc": '{"a": [1, null]}'}
    # JSON of null is a document for SQLAlchemy.
    assert full.asDict() == wanted
    assert [fact for fact in list(empty)[1:] if fact not in (None, "null")] == []


@pytest.mark.parametrize("column", ["n", "word", "fare", "at"])
def test_every_row_comes_once_whatever_the_ranges(
    database_url: str, engine: sa.Engine, column: str
) -> None:
    table = sa.Table(
        "t",
        sa.MetaData(),
        sa.Column("n", sa.BigInteger),
        sa.Column("word", sa.String(9)),
        sa.Column("fare", sa.Numeric(12, 2)),
        sa.Column("at", sa.DateTime(timezone=True)),
    )
    table.create(engine)
    rows = [
        {
            "n": None if i % 7 == 0 else i * i - 500,
            "word": None if i % 5 == 0 else f"w{i % 11}é",
            "fare": Decimal(i) / 4,
            "at": NOON + dt.timedelta(hours=i),
        }
        for i in range(100)
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
    for count in (1, 3, 20):
        parts = read_here(database_url, table="t", partitionColumn=column, numPartitions=count)
        assert len(parts) <= count
        assert len(parts) > 1 or count == 1
        assert sorted(row[2] for part in parts for row in part) == [row["fare"] for row in rows]


def test_bounds_say_where_to_cut_not_what_to_leave_out(
    database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql(
        "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (-5), (0), (10), (20), (999), (NULL)"
    )
    where = {"partitionColumn": "id", "lowerBound": 0, "upperBound": 20, "numPartitions": 3}
    parts = read_here(database_url, table="t", **where)
    assert [sorted((n for (n,) in part), key=str) for part in parts] == [
        [-5, 0, None],
        [10],
        [20, 999],
    ]


def test_empty_tables_have_their_columns(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    frame = read_table(table="t", numPartitions=4)
    assert frame.dtypes == [("id", "bigint"), ("name", "string")]
    assert frame.collect() == []
    assert frame.where("id > 5 and name = 'x'").collect() == []


def test_names_are_taken_as_they_are(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql('CREATE TABLE "Odd "".t; DROP" ("sel""ect" BIGINT, "B" TEXT)')
    run_sql("""INSERT INTO "Odd "".t; DROP" VALUES (1, 'x'), (2, 'y')""")
    frame = read_table(table='"Odd "".t; DROP"', partitionColumn='sel"ect', numPartitions=2)
    assert sorted(map(tuple, frame.collect())) == [(1, "x"), (2, "y")]
    assert [row.B for row in frame.where(f.col('sel"ect') == 2).collect()] == ["y"]


def test_a_query_and_fewer_columns(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql("CREATE TABLE t (id BIGINT, name TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    frame = read_table(query="SELECT id * 2 AS twice, name FROM t ORDER BY id DESC;")
    assert sorted(map(tuple, frame.collect())) == [(2, "a"), (4, "b")]
    assert sorted(map(tuple, read_table(table="t", columns="name").collect())) == [("a",), ("b",)]
    assert read_table("name string, id int", table="t").dtypes == [
        ("name", "string"),
        ("id", "int"),
    ]


@pytest.mark.parametrize(
    ("declared", "value", "shown"),
    [
        ("INTEGER", "'many'", "'many'"),
        ("REAL", "x'00'", "X'00'"),
        ("BOOLEAN", "7", "7 is neither 0 nor 1"),
        ("DECIMAL(4, 1)", "'12.34'", "data loss"),
        ("DATETIME", "'soon'", "soon"),
        ("DATE", "20240101", "20240101"),
        ("TEXT", "x'ff'", "X'FF'"),
    ],
)
def test_a_value_that_does_not_fit_is_shown(
    tmp_path: Path, declared: str, value: str, shown: str
) -> None:
    """SQLite keeps anything anywhere; a guess would be silent."""
    url = f"sqlite:///{tmp_path / 'loose.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE t (c {declared})")
        connection.exec_driver_sql("INSERT INTO t VALUES (NULL)")
        connection.exec_driver_sql(f"INSERT INTO t VALUES ({value})")
    engine.dispose()
    with pytest.raises(ValueMisfit, match=shown):
        read_here(url, table="t")


def test_values_after_many_nulls_keep_their_type(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'nulls.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (name TEXT, at DATETIME, bare)")
        nothing = [(None, None, None)] * 3000
        connection.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", nothing)
        zoned = ("x", "2024-01-01T02:00:00+02:00", 1)
        connection.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", [zoned])
    engine.dispose()
    (rows,) = read_here(url, table="t", fetchSize=100)
    assert rows[3000] == ("x", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), 1)
    assert len(rows) == 3001


def test_tasks_read_the_snapshot_they_are_given(spark: SparkSession, postgres: Postgres) -> None:
    url = postgres.database()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        writer.execute("INSERT INTO t SELECT generate_series(1, 100)")
        with psycopg.connect(url.replace("+psycopg", "")) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
            writer.execute("DELETE FROM t WHERE id % 2 = 0")
            reader = spark.read.format("headwater_table").options(url=url, table="t")
            held = reader.options(snapshot=snapshot, numPartitions=3).load()
            assert held.count() == 100
        assert spark.read.format("headwater_table").options(url=url, table="t").load().count() == 50


def test_what_spark_does_not_know_comes_as_text_and_infinity_is_refused(postgres: Postgres) -> None:
    url = postgres.database()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as writer:
        writer.execute("CREATE TYPE mood AS ENUM ('glad')")
        writer.execute(
            "CREATE TABLE t (m mood, u uuid, a int[], i interval, c char(3), n numeric, s smallint)"
        )
        writer.execute(
            "INSERT INTO t VALUES ('glad', '00000000-0000-0000-0000-000000000001', '{1,2}', "
            "'1 day', 'x', 0.5, 7)"
        )
        ((row,),) = read_here(url, table="t")
        text = "00000000-0000-0000-0000-000000000001"
        assert row == ("glad", text, "{1,2}", "1 day", "x", Decimal("0.5"), 7)
        for value in ("'infinity'::timestamptz", "'infinity'::date", "'NaN'::numeric"):
            with pytest.raises(ValueMisfit):
                read_here(url, query=f"SELECT {value} AS v")


def test_skewed_texts_are_cut_into_equal_counts(
    database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql("CREATE TABLE t (word TEXT)")
    run_sql("INSERT INTO t VALUES " + ", ".join(f"('a{i:03}')" for i in range(100)))
    parts = read_here(database_url, table="t", partitionColumn="word", numPartitions=4)
    assert [len(part) for part in parts] == [25, 25, 25, 25]


# ── A database filters a table as Spark would, and what cannot be read is refused in one line ────


FILTERS: list[tuple[Filter, list[int]]] = [
    (ds.GreaterThan(("n",), 3), [4, 5]),
    (ds.LessThanOrEqual(("n",), 2), [0, 1, 2]),
    (ds.IsNull(("n",)), [6]),
    (ds.In(("n",), (1, 5, 77)), [1, 5]),
    (ds.Not(ds.EqualTo(("n",), 3)), [0, 1, 2, 4, 5]),
    (ds.EqualTo(("word",), "o'k \\ %"), [0, 5]),
    (ds.GreaterThan(("word",), "B"), [0, 1, 2, 5]),
    (ds.StringStartsWith(("word",), "aé"), [2]),
    (ds.EqualTo(("free",), False), [1, 3, 5]),
    (ds.LessThan(("ratio",), 0.25), [0, 1, 2]),
]


@pytest.fixture
def mixed(engine: sa.Engine) -> None:
    """A table ``t`` of seven rows; the last is all nulls. Texts are sorted as people do."""
    collation = "NOCASE"
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            found = "SELECT collname FROM pg_collation WHERE collprovider = 'i'"
            collation = connection.exec_driver_sql(found).scalars().first() or "C"
    table = sa.Table(
        "t",
        sa.MetaData(),
        sa.Column("n", sa.Integer),
        sa.Column("word", sa.Text(collation=collation)),
        sa.Column("free", sa.Boolean),
        sa.Column("ratio", sa.Double),
        sa.Column("day", sa.Date),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("fare", sa.Numeric(8, 2)),
    )
    table.create(engine)
    rows = [
        {
            "n": n,
            "word": word,
            "free": n % 2 == 0,
            "ratio": n / 10,
            "day": dt.date(2024, 1, 1 + n),
            "at": dt.datetime(2024, 1, 1 + n, 1, tzinfo=dt.UTC),
            "fare": Decimal(n) / 2,
        }
        for n, word in enumerate(["o'k \\ %", "a", "aé", "A", "B", "o'k \\ %"])
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), [*rows, dict.fromkeys(rows[0])])


@pytest.mark.usefixtures("mixed")
def test_the_database_filters_as_spark_would(database_url: str) -> None:
    for one, kept in FILTERS:
        (rows,) = read_here(database_url, one, table="t")
        assert sorted(6 if row[0] is None else row[0] for row in rows) == kept, one


@pytest.mark.usefixtures("mixed")
def test_filters_on_times_and_decimals_are_decided_right(read_table: Read) -> None:
    """Pushed down by Postgres; SQLite holds texts, so that Spark decides."""
    condition = "day > date'2024-01-02' and at <= timestamp'2024-01-05 01:00:00' and fare > 1.00"
    assert sorted(row.n for row in read_table(table="t").where(condition).collect()) == [3, 4]


def test_what_cannot_be_is_refused_in_one_line(
    read_table: Read, database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql("CREATE TABLE t (id BIGINT, raw TEXT)")
    with pytest.raises(QueryRefused, match="nope"):
        read_table(table="nope")
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, InvalidInput, "'table' and 'query'"),
        ({"table": "a..b"}, InvalidInput, "schema.name"),
        ({"query": "SELECT nope FROM t"}, QueryRefused, "nope"),
        ({"table": "t", "columns": "nope"}, InvalidInput, "it has id, raw"),
        ({"table": "t", "numpartition": 3}, InvalidInput, "did you mean 'numPartitions'"),
        ({"table": "t", "numPartitions": 3}, InvalidInput, "no primary key of one column"),
        ({"table": "t", "partitionColumn": "nope"}, InvalidInput, "it has id, raw"),
        ({"table": "t", "lowerBound": 1}, InvalidInput, "need the option 'partitionColumn'"),
    ]
    where = {"table": "t", "partitionColumn": "id"}
    refused += [
        (where | {"lowerBound": "x"}, InvalidInput, "'lowerBound' is 'x'"),
        (where | {"lowerBound": 9, "upperBound": 2}, InvalidInput, "exchange them"),
        (where | {"partitionColumn": "raw", "lowerBound": "a"}, InvalidInput, "leave them out"),
    ]
    for options, error, words in refused:
        with pytest.raises(error, match=words) as told:
            read_here(database_url, **options)
        assert "\n" not in str(told.value)


def test_passwords_are_in_no_message() -> None:
    secret = "hunter2secret"
    for url in (
        f"postgresql+psycopg://u:{secret}@127.0.0.1:1/x",
        f"postgresql://u@127.0.0.1:1/x?password={secret}",
        f"mysql://u:{secret}@h/x",
        f"postgresql://u:{secret}@h:port/x",
    ):
        with pytest.raises(HeadwaterError) as told:
            read_here(url, table="t")
        assert secret not in str(told.value)


# Filters spare what cannot match, and no row that Spark would keep; it applies all of them again.
# So it is also when one DataFrame is used many times.

# Times that go up and down: only a least time may spare offsets.
TIMES = [1_700_000_000_000 + 7 * ((i * 37) % 1000) for i in range(1500)]
MS = TIMES[20]
LEAP_NOON = dt.datetime.fromtimestamp(MS / 1000, dt.UTC)
LATER = LEAP_NOON + dt.timedelta(microseconds=500)
NAME = "filtered"
OFFSET, TAG, TIME = ("offset",), ("tag",), ("time",)

Test = Callable[[int, str, int], bool]
CASES: list[tuple[Filter, Test]] = [
    (GreaterThanOrEqual(OFFSET, 700), lambda o, _, __: o >= 700),
    (GreaterThan(OFFSET, 700), lambda o, _, __: o > 700),
    (LessThan(OFFSET, 720), lambda o, _, __: o < 720),
    (LessThanOrEqual(OFFSET, 3), lambda o, _, __: o <= 3),
    (EqualTo(OFFSET, 1500), lambda o, _, __: o == 1500),
    (In(OFFSET, (5, 900, 7000)), lambda o, _, __: o in (5, 900)),
    (Not(In(OFFSET, (5, 900))), lambda o, _, __: o not in (5, 900)),
    (Not(LessThan(OFFSET, 1400)), lambda o, _, __: o >= 1400),
    (GreaterThan(OFFSET, 5000), lambda _, __, ___: False),
    (EqualTo(OFFSET, -3), lambda _, __, ___: False),
    (EqualTo(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (EqualNullSafe(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (Not(EqualTo(TAG, "tag-3")), lambda _, tag, __: tag != "tag-3"),
    (In(TAG, ("tag-3", "tag-5")), lambda _, tag, __: tag in ("tag-3", "tag-5")),
    (StringStartsWith(TAG, "tag-3"), lambda _, tag, __: tag == "tag-3"),
    (StringEndsWith(TAG, "-6"), lambda _, tag, __: tag == "tag-6"),
    (StringContains(TAG, "g-1"), lambda _, tag, __: tag == "tag-1"),
    (GreaterThan(TAG, "tag-4"), lambda _, tag, __: tag > "tag-4"),
    (GreaterThanOrEqual(TIME, LEAP_NOON), lambda _, __, ms: ms >= MS),
    (GreaterThanOrEqual(TIME, LATER), lambda _, __, ms: ms > MS),
    (LessThan(TIME, LATER), lambda _, __, ms: ms <= MS),
    (LessThan(TIME, LEAP_NOON), lambda _, __, ms: ms < MS),
    (EqualTo(TIME, LEAP_NOON), lambda _, __, ms: ms == MS),
    (EqualTo(TIME, LATER), lambda _, __, ___: False),
    (
        In(TIME, (LEAP_NOON, LEAP_NOON + dt.timedelta(milliseconds=7))),
        lambda _, __, ms: ms - MS in (0, 7),
    ),
    (EqualTo(("partition",), 0), lambda _, __, ___: True),
    (EqualTo(("partition",), 1), lambda _, __, ___: False),
    (Not(EqualTo(("stream",), NAME)), lambda _, __, ___: False),
]
ROWS = [
    (offset, tag, ms)
    for offset, ((tag, _), ms) in enumerate(zip(entries(1500), TIMES, strict=True), 1)
]


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        write_at(hw.stream(NAME), TIMES)
    return url


def offsets_by(url: str, filters: list[Filter], **options: str) -> tuple[list[int], list[Filter]]:
    """Plan and read as Spark does; returns the offsets read and the filters given back."""
    source = HeadwaterSource({"url": url, "stream": NAME, "minPartitions": "3", **options})
    plain = source.reader(source.schema())
    reader = FilteringReader(**vars(plain))
    refused = list(reader.pushFilters(filters))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return sorted(o for batch in batches for o in batch.column("offset").to_pylist()), refused


@pytest.mark.parametrize(("found", "test"), CASES, ids=[str(case) for case, _ in CASES])
def test_a_filter_leaves_out_no_row_that_it_keeps(url: str, found: Filter, test: Test) -> None:
    offsets, refused = offsets_by(url, [found])
    wanted = [row[0] for row in ROWS if test(*row)]
    assert set(wanted) <= set(offsets)
    # Of tags only an archive knows what it can spare.
    assert refused == ([found] if column_of(found) == TAG else [])


def column_of(found: Filter) -> tuple[str, ...]:
    inner = found.child if isinstance(found, Not) else found
    column: tuple[str, ...] = inner.attribute  # type: ignore[attr-defined]
    return column


@pytest.mark.parametrize(
    ("found", "first", "last"),
    [
        (GreaterThanOrEqual(OFFSET, 700), 700, 1500),
        (GreaterThan(OFFSET, 700), 701, 1500),
        (LessThan(OFFSET, 720), 1, 719),
        (LessThanOrEqual(OFFSET, 3), 1, 3),
        (EqualTo(OFFSET, 1500), 1500, 1500),
        (In(OFFSET, (5, 900, 7)), 5, 900),
        (EqualTo(("partition",), 1), 1, 0),
        (Not(EqualTo(("stream",), NAME)), 1, 0),
        (EqualTo(TIME, dt.datetime(2100, 1, 1, tzinfo=dt.UTC)), 1, 0),
    ],
    ids=str,
)
def test_a_filter_spares_all_that_its_kind_can_spare(
    url: str, found: Filter, first: int, last: int
) -> None:
    assert offsets_by(url, [found]) == (list(range(first, last + 1)), [])


def test_filters_narrow_together(url: str) -> None:
    filters = [GreaterThan(TIME, LEAP_NOON), LessThan(OFFSET, 800), GreaterThan(OFFSET, 790)]
    assert offsets_by(url, filters) == (list(range(791, 800)), [])


@pytest.mark.parametrize(
    "found",
    [
        EqualTo(("value",), b"value-77"),
        EqualTo(("tag", "length"), "x"),
        In(TAG, ("tag-1", None)),
        LessThan(TIME, dt.datetime(2026, 1, 1)),  # noqa: DTZ001  as Spark's type without a zone
        IsNotNull(TAG),
    ],
    ids=str,
)
def test_a_filter_that_is_not_understood_is_given_back(url: str, found: Filter) -> None:
    assert offsets_by(url, [found]) == ([row[0] for row in ROWS], [found])


def test_a_filter_spares_what_cannot_match(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(3000)
    stream.evict(1500)
    options = {"url": embedded_url, "stream": stream.name, "startingOffsets": "1"}
    source = HeadwaterSource(options)
    reader = FilteringReader(**vars(source.reader(source.schema())))
    assert list(reader.pushFilters([GreaterThan(OFFSET, 2990)])) == []
    # Offsets 1 to 1500 are lost, but nothing is lost that this query asks for.
    [part] = reader.partitions()
    assert [batch.num_rows for batch in reader.read(part)] == [10]


def test_a_dataframe_sees_what_came_since_its_last_use(
    spark: SparkSession, embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(10)
    reader = spark.read.format("headwater").option("url", embedded_url)
    frame = reader.option("stream", stream.name).load()
    assert frame.count() == 10
    stream.write_many(entries(5, 11))
    assert frame.count() == 15


@pytest.mark.parametrize("columns", [(), ("offset",), ("stream", "partition")], ids=str)
def test_messages_are_counted_without_a_look_at_them(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], columns: tuple[str, ...]
) -> None:
    stream = make_embedded_stream(3000)
    stream.evict(10)

    def planned(least: int) -> tuple[DataSourceReader, Sequence[InputPartition]]:
        options = {"url": embedded_url, "stream": stream.name, "minPartitions": str(least)}
        source = HeadwaterSource(options)
        fields = [field for field in source.schema().fields if field.name in columns]
        reader = source.reader(StructType([*fields, StructField("__node", BinaryType())]))
        return reader, reader.partitions()

    _, parts = planned(2)
    facts = [part.facts for part in parts if isinstance(part, CountedRange)]
    name = stream.name.encode()
    assert len(facts) == len(parts) >= 2
    assert all(one.endswith(name) for one in facts)
    spans = [struct.unpack("<qqii", one.removesuffix(name)[-24:]) for one in facts]
    assert {(partition, size) for _, _, partition, size in spans} == {(0, len(name))}
    offsets = [offset for start, stop, _, _ in spans for offset in range(start, stop)]
    assert offsets == list(range(11, 3001))
    # Where offsets are missing, nodes tell how many messages there are.
    stream.compact()
    reader, parts = planned(1)
    batches: Any = [batch for part in parts for batch in reader.read(part)]
    nodes = [node for batch in batches for node in batch.column("__node").to_pylist()[1:]]
    counts = [int.from_bytes(node[4:8], "little") for node in nodes]
    assert sum(counts) == stream.info().length == 7
