"""Read a stream, write to it, follow it and stop on the way; in a session of ours, for its end."""

import sys

from headwater.spark import session

url, stream, folder = sys.argv[1:]
spark = session("local[2]", **{"spark.driver.memory": "512m"})
store = {"url": url, "stream": stream, "minPartitions": "4"}
rows = spark.read.format("headwater").options(**store).load()
# One that is read to its end, and one that is left before.
rows.count()
rows.first()
copy = rows.limit(100).select("tag", "value").write.format("headwater").mode("append")
copy.options(url=url, stream=f"{stream}-copy").save()
query = (
    spark.readStream.format("headwater")
    .options(**store, maxOffsetsPerTrigger="2000")
    .load()
    .select("tag", "value")
    .writeStream.format("headwater")
    .options(url=url, stream=f"{stream}-copy", checkpointLocation=folder)
    .start()
)
while query.isActive and query.lastProgress is None:
    query.awaitTermination(1)
query.stop()
spark.stop()
print("done")
