"""Write to a topic and to a table on a cluster; prints from which executors, as JSON."""

import json
import sys

from pyspark.sql import SparkSession

from headwater.spark import register

url, stream, topic, db, folder = sys.argv[1:]
spark = SparkSession.builder.appName("write on a cluster").getOrCreate()
register(spark)

reader = spark.readStream.format("headwater").option("url", url).option("stream", stream)
rows = reader.option("minPartitions", 4).option("maxOffsetsPerTrigger", 2000).load()
copy = (
    rows.select("tag", "value")
    .writeStream.format("headwater")
    .option("url", url)
    .option("topic", topic)
    .option("checkpointLocation", f"{folder}/copy")
    .trigger(availableNow=True)
    .start()
)
sums = (
    rows.selectExpr("tag AS ride", "offset AS distance")
    .writeStream.format("headwater_sql")
    .option("url", db)
    .option("table", "totals")
    .option("mode", "add")
    .option("checkpointLocation", f"{folder}/sums")
    .trigger(availableNow=True)
    .start()
)
for query in (copy, sums):
    query.awaitTermination()
print(json.dumps({"master": spark.sparkContext.master}))
