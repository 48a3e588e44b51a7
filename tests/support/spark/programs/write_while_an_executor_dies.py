"""Write to a stream while an executor is killed in the middle of it; prints the plan as JSON."""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from headwater.spark import register

url, stream, marker, count = sys.argv[1:]
spark = SparkSession.builder.appName("write while an executor dies").getOrCreate()
register(spark)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@udf("string")
def deadly(number: int) -> str:
    """Return the number; kills this executor at the end of its third quarter, once."""
    if number == int(count) * 3 // 4 - 1:
        try:
            Path(marker).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            # The parent of workers, and the JVM above it.
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
    return str(number)


rows = spark.range(0, int(count), 1, 4).select(deadly("id").alias("value"))
rows.write.format("headwater").mode("append").options(url=url, stream=stream).save()
spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
ran = spark._jsparkSession.sharedState().statusStore().executionsList()
print(json.dumps({"plan": ran.last().physicalPlanDescription()}))
