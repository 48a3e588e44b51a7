"""The parent of the workers that run tasks, which Spark starts as ``python -m``; see ``processes``.

Processes that plan are started by ``pyspark.daemon``, whatever the settings; they import our
sources.
"""

from pyspark.daemon import manager

from headwater.spark.engine.processes import quiet_and_freeze

if __name__ == "__main__":
    quiet_and_freeze()
    manager()
