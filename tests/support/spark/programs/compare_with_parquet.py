"""Compare a stream with its rows in Parquet files, for many predicates, by Spark Connect.

Prints the seeds of the predicates that gave other rows, as JSON.
"""

import json
import pathlib
import sys
import tempfile

from pyspark.sql import SparkSession

from headwater.spark import register

sys.path.insert(0, str(pathlib.Path(__file__).parents[4]))
from tests.support.spark.predicates import LONG_SEEDS, answers

url, stream = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
ours = spark.read.format("headwater").options(url=url, stream=stream).load()
with tempfile.TemporaryDirectory() as folder:
    path = f"{folder}/rows"
    ours.write.parquet(path)
    parquet = spark.read.parquet(path)
    rows = parquet.count()
    others = []
    for seed in range(LONG_SEEDS):
        found, wanted = answers(ours, parquet, rows, stream, seed)
        if found != wanted:
            others.append(seed)
print(json.dumps({"rows": rows, "seeds": LONG_SEEDS, "others": others}))
spark.stop()
