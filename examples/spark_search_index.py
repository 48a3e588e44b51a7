"""A search index that follows a table: dirty rows, read again by Spark, written as index files.

An application changes rows of SQLite or Postgres and stages their keys in the same transaction. A
group member turns them into dirty members of a channel, however often a row was changed. The job
reserves what is dirty, reads those rows as they are now, writes them to files, and commits. Each
part may be killed and started again at any time.

A job that is slow loses its lease, and another one writes the same members again, perhaps with
newer rows. So each row of the index says by which reservation it was written: of one document the
highest counts, and what a late job writes is lower.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as t

import headwater
from headwater.outbox import Outbox, Streamer
from headwater.spark import session

RESERVED = t.StructType(
    [
        t.StructField("id", t.LongType()),
        t.StructField("epoch", t.LongType()),
        t.StructField("token", t.LongType()),
        t.StructField("generation", t.LongType()),
    ]
)


class Documents:
    """The application: documents in a table, and each change told in its transaction."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)
        self.outbox = Outbox(self.engine)
        self.outbox.create_all()
        with self.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE documents (id INTEGER PRIMARY KEY, body TEXT)"))

    def put(self, bodies: dict[int, str]) -> None:
        with self.engine.begin() as conn:
            for number, body in bodies.items():
                conn.execute(sa.text("DELETE FROM documents WHERE id = :id"), {"id": number})
                row = {"id": number, "body": body}
                conn.execute(sa.text("INSERT INTO documents VALUES (:id, :body)"), row)
                self.outbox.stage(conn, "documents", str(number), b"put")

    def remove(self, number: int) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.text("DELETE FROM documents WHERE id = :id"), {"id": number})
            self.outbox.stage(conn, "documents", str(number), b"removed")

    def with_word(self, word: str) -> list[int]:
        """Search the slow way, to compare."""
        with self.engine.connect() as conn:
            rows = conn.execute(sa.text("SELECT id, body FROM documents")).all()
        return sorted(number for number, body in rows if word in body.split())


def feed(documents: Documents, hw: headwater.Headwater) -> None:
    """Bring what changed from the table to the log, and from there to the dirty list."""
    with Streamer(documents.outbox, hw) as streamer:
        while streamer.run_once():
            pass
    group, dirty = hw.stream("documents").group("index"), hw.ick_channel("documents")
    while messages := group.read(1000, ack_ms=30_000):
        # Backwards, so that of several messages of a tag the first one's time stays.
        dirty.add({message.tag: message.time_ms for message in reversed(messages)})
        group.ack((messages[0].offset, messages[-1].offset))


def sync(spark: SparkSession, documents: Documents, dirty: headwater.IckChannel, index: str) -> int:
    """Bring into the index what is dirty, a batch of each shard at a time; returns how many."""
    done = 0
    while batch := dirty.reserve(1000):
        reserved = spark.createDataFrame(
            [(int(row.member), batch.epoch, batch.token, row.generation) for row in batch], RESERVED
        )
        table = spark.read.format("headwater_table").options(url=documents.url, table="documents")
        rows = table.load().where(F.col("id").isin([int(member) for member in batch.members]))
        # Documents that are gone have no row: their words are null from now on.
        words = F.split(F.col("body"), " ").alias("words")
        found = reserved.join(rows, "id", "left").select(*RESERVED.names, words)
        found.coalesce(1).write.mode("append").parquet(index)
        # If another job has these members by now, that one writes them again.
        with contextlib.suppress(headwater.LeaseLost):
            done += dirty.commit(batch)
    return done


def search(spark: SparkSession, index: str, word: str) -> list[int]:
    """Find the documents that have a word, by the index alone."""
    written = spark.read.parquet(index)
    order = F.struct("epoch", "token", "generation")
    newest = written.groupBy("id").agg(F.max_by("words", order).alias("words"))
    rows = newest.where(F.array_contains("words", word)).select("id").collect()
    return sorted(row.id for row in rows)


def run(spark: SparkSession, hw: headwater.Headwater, place: Path) -> None:
    documents = Documents(f"sqlite:///{place / 'documents.db'}")
    dirty = hw.ick_channel("documents", shards=2, ack_ms=300_000)
    index = str(place / "index")

    documents.put({number: f"rocket number {number}" for number in range(200)})
    documents.put(dict.fromkeys(range(0, 200, 50), "a slow boat"))
    feed(documents, hw)
    print(f"204 changes, {sync(spark, documents, dirty, index)} documents indexed")

    documents.put({50: "a fast rocket"})
    documents.remove(100)
    feed(documents, hw)
    print(f"2 changes, {sync(spark, documents, dirty, index)} documents indexed")

    for word in ("boat", "rocket", "fast"):
        found = search(spark, index, word)
        print(f"{word}: {len(found)} documents")
        if found != documents.with_word(word):
            raise SystemExit("the index is not what the table says")


def main() -> None:
    with headwater.connect() as hw:
        run(session("local[2]", app_name="search index"), hw, Path.cwd())


if __name__ == "__main__":
    main()
