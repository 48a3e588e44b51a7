"""Read, write and stream in a session of ours, or of Spark Connect; prints what came of it as JSON.

A Connect client makes its session itself: nothing of ours but the formats is known to the server.
"""

import json
import pathlib
import sys
import tempfile

from pyspark.sql import SparkSession

from headwater.spark import register, session

kind, url, stream = sys.argv[1:]
if kind == "connect":
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    register(spark)
else:
    spark = session("local[2]")
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
frame = spark.read.format("headwater").options(url=url, stream=stream).load()
low, high = frame.where("offset < 5"), frame.where("offset > 2950")
both = low.union(high).count()
joined = low.select("tag").crossJoin(high.select("value")).count()
again = [low.count(), frame.count(), high.count()]
rows = spark.sql("SELECT 'k' AS tag, 'v' AS value")
rows.write.format("headwater").options(url=url, stream="written").mode("append").save()
streaming = spark.readStream.format("headwater").options(url=url, stream=stream).load()
if spark.version.startswith("4.1."):
    # It cannot stream from us, only to us.
    lines = pathlib.Path(tempfile.mkdtemp())
    (lines / "lines.txt").write_text("line\n" * again[1])
    streaming = spark.readStream.text(str(lines))
query = (
    streaming.writeStream.format("headwater")
    .options(url=url, stream="streamed", checkpointLocation=tempfile.mkdtemp())
    .queryName("any")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
written = [
    spark.read.format("headwater").options(url=url, stream=name).load().count()
    for name in ("written", "streamed")
]
found = {"both": both, "joined": joined, "again": again, "written": written}
if kind == "session":
    # Our rule of the optimizer, and so all of our Java, or nothing of it.
    found["rules"] = spark._jsparkSession.experimental().extraOptimizations().length()
    found["source"] = query.recentProgress[-1]["sources"][0]["description"]
print(json.dumps({**found, "version": spark.version}))
spark.stop()
