"""A notebook of a data engineer: read a log with Spark, aggregate, join, and write back.

Cells are marked by ``# %%``; editors run them one by one, Python runs them all. Needs
``pip install 'headwater[spark]'``; the log is the embedded one of this directory.
"""

# %% Some rides, as an application would write them.
import json
import sqlite3
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

import headwater
from headwater.spark import session

hw = headwater.connect()
hw.stream("totals").delete()
rides = hw.topic("rides-by-pilot", partitions=4)
for start in range(0, 20_000, 5_000):
    rides.write_many(
        (
            f"pilot-{number % 7}",
            json.dumps({"ride": number, "distance_mm": number * 7919 % 90_000_000}).encode(),
        )
        for number in range(start, start + 5_000)
    )

# %% A session in which the formats of Headwater are known.
spark = session("local[2]", app_name="notebook")

# %% Read. Offsets, tags and times are columns; the value is bytes.
raw = spark.read.format("headwater").option("topic", "rides-by-pilot").load()
raw.printSchema()

ride = StructType([StructField("ride", LongType()), StructField("distance_mm", LongType())])
parsed = raw.select(
    "partition",
    "offset",
    F.col("tag").alias("pilot"),
    F.from_json(F.col("value").cast(StringType()), ride).alias("ride"),
    "time",
).select("*", "ride.*")
parsed.drop("ride").show(3)

# %% Aggregate, in SQL. A filter on offset, time or tag is applied by the source.
parsed.createOrReplaceTempView("rides")
totals = spark.sql("""
    SELECT pilot, count(*) AS rides, sum(distance_mm) AS distance_mm
    FROM rides WHERE pilot <> 'pilot-6' GROUP BY pilot ORDER BY pilot
""")
totals.show()

# %% By window of time: when was it busy?
parsed.groupBy(F.window("time", "1 minute")).agg(F.count("*").alias("rides")).show(truncate=False)

# %% Join with a table of the application's database.
database = Path("pilots.db").absolute()
with sqlite3.connect(database) as connection:
    connection.execute("DROP TABLE IF EXISTS pilots")
    connection.execute("CREATE TABLE pilots (id TEXT PRIMARY KEY, name TEXT NOT NULL)")
    names = ["Ada", "Bessie", "Charles", "Amelia", "Beryl", "Otto", "Elly"]
    connection.executemany(
        "INSERT INTO pilots VALUES (?, ?)",
        [(f"pilot-{number}", name) for number, name in enumerate(names)],
    )
pilots = (
    spark.read.format("headwater_table")
    .option("url", f"sqlite:///{database}")
    .option("table", "pilots")
    .load()
)
by_name = totals.join(pilots, totals.pilot == pilots.id).select("name", "rides", "distance_mm")
by_name.orderBy(F.desc("distance_mm")).show()

# %% Write back: the totals of each pilot, for everybody who follows that stream.
messages = by_name.select(
    F.col("name").alias("tag"), F.to_json(F.struct("rides", "distance_mm")).alias("value")
)
messages.orderBy("tag").write.format("headwater").mode("append").option("stream", "totals").save()
for message in hw.stream("totals").read(1, 10):
    print(message)

# %% Follow the log: read what is new since the last time, and end.
query = (
    spark.readStream.format("headwater")
    .option("topic", "rides-by-pilot")
    .option("maxOffsetsPerTrigger", 10_000)
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .start("archived")
)
query.awaitTermination()
print(spark.read.parquet("archived").count(), "rides in files")

# %% Done.
spark.stop()
hw.close()
