"""Spark's parent of the workers that run tasks, started as ``python -m``; see processes.

Those that plan are started by ``pyspark.daemon``, whatever the settings, and import our sources.
"""

from pyspark.daemon import manager

from headwater.spark.engine.processes import be_a_good_guest

if __name__ == "__main__":
    be_a_good_guest()
    manager()
