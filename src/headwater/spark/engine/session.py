"""A ready SparkSession: Java found, Python and Arrow set, our sources registered.

Nothing here is needed for the sources to work; a session made elsewhere takes them by
``register``, or finds "headwater" by itself through the module ``pyspark_headwater``.
"""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from typing import TYPE_CHECKING

from headwater.spark.engine.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Set by spark-submit in the programs it starts: the JVM runs already, its settings are made.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Spare the JVM checks of every access to Arrow's memory; Arrow itself keeps within its vectors.
_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    # One line for a mistake in an option, instead of the stack of the process that noticed.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # Over TCP every task of a Python source waits 40 ms for a confirmation that is put off.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headwater.spark.engine.daemon",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    master: str | None = None, *, app_name: str = "headwater", **conf: object
) -> SparkSession:
    """Give a session in which everything of Headwater works, making it when there is none yet.

    ``master`` is a Spark master: ``local[2]``, ``spark://host:7077``, ...; without it what
    spark-submit or Spark's own settings say, else this machine with all its cores. ``conf`` holds
    further settings by their full name, as in ``**{"spark.driver.memory": "2g"}``; they win over
    ours. Raises SparkMissing, JavaMissing. A first session takes seconds to start.
    """
    from headwater.spark import register, require_spark

    require_spark()
    from pyspark.sql import SparkSession

    submitted = _SUBMITTED in os.environ
    if not submitted:
        prepare_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings: dict[str, object] = dict(_SETTINGS)
    if not submitted:
        quiet = files("headwater.spark.engine").joinpath("log4j2.properties")
        settings["spark.driver.extraJavaOptions"] = (
            f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile=file:{quiet}"
        )
        if (master or "local").startswith("local"):
            settings |= _LOCAL_SETTINGS
    settings |= conf
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    register(spark)
    return spark
