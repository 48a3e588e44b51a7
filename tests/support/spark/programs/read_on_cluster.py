"""Read a stream on a cluster in a session that nobody prepared; prints what was found as JSON."""

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it

from headwater.spark import register

url, stream, folder = sys.argv[1:]
spark = SparkSession.builder.appName("read on a cluster").getOrCreate()

frame = spark.read.format("headwater").option("url", url).option("stream", stream)
rows = frame.option("minPartitions", 6).load().withColumn("task", F.spark_partition_id())
whole = rows.agg(F.count("*"), F.sum("offset"), F.countDistinct("task")).first()
assert whole is not None

query = (
    spark.readStream.format("headwater")
    .option("url", url)
    .option("stream", stream)
    .option("maxOffsetsPerTrigger", 2000)
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{folder}/rows")
)
query.awaitTermination()
streamed = spark.read.parquet(f"{folder}/rows").agg(F.count("*"), F.sum("offset")).first()
assert streamed is not None

try:
    spark.read.format("headwater").option("url", url).option("stream", "nobody").load().count()
    error = ""
except Exception as caught:  # noqa: BLE001  whatever a user would see
    error = str(caught)

register(spark)
again = frame.option("minPartitions", 6).load()
columns = again.agg(F.count("*"), F.sum("offset"), F.sum(F.length("value"))).first()
assert columns is not None
plan = again._jdf.queryExecution().executedPlan().toString()

# Besides the driver.
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print(
    json.dumps(
        {
            "whole": list(whole),
            "columns": list(columns),
            "plan": plan,
            "streamed": list(streamed),
            "error": error,
            "executors": executors,
            "master": spark.sparkContext.master,
        }
    )
)
