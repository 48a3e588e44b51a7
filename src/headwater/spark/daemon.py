"""Spark's parent of the workers that run tasks, started as ``python -m``; see farewell.

Those that plan are started by ``pyspark.daemon``, whatever the settings, and import our sources.
"""

from pyspark.daemon import manager

from headwater.spark.farewell import leave_in_silence

if __name__ == "__main__":
    leave_in_silence()
    manager()
