"""Write to a topic, a table and a stream on a cluster; prints where, and the last plan, as JSON."""

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
whole = spark.read.format("headwater").option("url", url).option("stream", stream)
again = whole.option("minPartitions", 4).load().select("tag", "value").write.format("headwater")
again.mode("append").option("url", url).option("stream", f"{stream}-again").save()
spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
ran = spark._jsparkSession.sharedState().statusStore().executionsList()
plan = ran.last().physicalPlanDescription()
print(json.dumps({"master": spark.sparkContext.master, "plan": plan}))
