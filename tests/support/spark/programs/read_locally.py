"""Count a stream in a session of ours; prints the count, and the Java it ran on, as JSON."""

import json
import sys

from headwater.spark import session

url, stream = sys.argv[1:]
spark = session("local[1]", **{"spark.driver.memory": "512m"})
rows = spark.read.format("headwater").option("url", url).option("stream", stream).load().count()
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")  # type: ignore[union-attr]
print(json.dumps({"rows": rows, "java": java}))
