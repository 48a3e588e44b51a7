"""The archive: a stream's history as a Delta table, whose files are Parquet.

Reading it needs pyarrow and deltalake, and no Spark. ``headwater.spark.jobs`` has the jobs that
fill it and that restore it into a stream.
"""
