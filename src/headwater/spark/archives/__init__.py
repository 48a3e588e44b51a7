"""The archive: a stream's history as Parquet files, and the manifest that says what is in them.

Nothing but pyarrow is needed to read it. ``headwater.spark.jobs`` has the jobs that fill it and
that restore it into a stream.
"""
