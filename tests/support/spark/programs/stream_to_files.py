"""Stream to Parquet files until killed, or, with a last word "now", to the end of what is there."""

import sys

from headwater.spark import session

url, stream, folder, *now = sys.argv[1:]
spark = session("local[2]", **{"spark.driver.memory": "512m"})
query = (
    spark.readStream.format("headwater")
    .option("url", url)
    .option("stream", stream)
    .option("groupId", "files")
    .option("maxOffsetsPerTrigger", 20_000)
    .load()
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(**({"availableNow": True} if now else {"processingTime": "0 seconds"}))
    .start(f"{folder}/rows")
)
query.awaitTermination()
