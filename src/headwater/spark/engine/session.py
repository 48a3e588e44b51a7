"""Makes a SparkSession that our formats work well in: Java found, Python, Arrow and sockets set."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import InvalidInput, SparkMissing
from headwater.spark.engine.java import prepare_java
from headwater.spark.engine.python import fast_python, starts_this_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("headwater.spark")

# Set by spark-submit in the programs that it starts: their JVM runs already, with its settings.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Without checks of every access to Arrow's memory; Arrow itself keeps within its vectors.
_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    # A mistake in an option is one line, without the stack of the process that noticed it.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # Over TCP every task of a Python source waits 40 ms for a delayed ACK.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headwater.spark.engine.daemon",
    # A busy machine may take long to start a process: that is no reason to end a query.
    "spark.python.authenticate.socketTimeout": "300s",
}
# How the name of a master begins; with another one Spark ends its JVM with a stack.
_MASTERS = ("local", "spark://", "k8s://", "yarn")
# Older ones lack what our sources and sinks are written on.
LEAST_SPARK = (4, 1)
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def require_spark() -> None:
    """Raise SparkMissing unless a PySpark is installed that we can use."""
    if find_spec("pyspark") is None:
        raise SparkMissing()
    found = version("pyspark")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < LEAST_SPARK:
        raise SparkMissing(found)


def require_streaming() -> None:
    """Raise InvalidInput unless this Spark tells a Python source where a micro-batch begins."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise InvalidInput(
            f"streaming queries that read need Spark 4.2 or later, and this is "
            f"{version('pyspark')}; read by spark.read, or upgrade"
        )


def unknown_formats(spark: SparkSession, names: Sequence[str]) -> list[str]:
    """Return the formats that a session does not find by itself, by a module ``pyspark_...``.

    To register another one again would make Spark warn that it is replaced. A session that starts
    this very Python finds what this one finds; others are asked, for which Spark starts a process
    and imports all such modules. A Connect server finds all of them or none, and is asked for one.
    """
    if getattr(spark, "_jvm", None) is None:
        return [] if _are_found_by_server(spark) else [*names]
    if starts_this_python(spark.sparkContext):
        return [name for name in names if find_spec(f"pyspark_{name}") is None]
    known = spark._jsparkSession.sessionState().dataSourceManager()
    return [name for name in names if not known.dataSourceExists(name)]


def _are_found_by_server(spark: SparkSession) -> bool:
    from pyspark.errors import PySparkException

    try:
        # Asks no store; a server that did not know the format would log its error.
        _ = spark.read.format("headwater_names").option("kind", "kinds").load().schema
    except PySparkException:
        return False
    return True


def warn_of_other_python(spark: SparkSession) -> None:
    """Log one line when the Python that a session starts does not find this library.

    Every read and write would fail with the stack of a process that cannot import it.
    """
    if getattr(spark, "_jvm", None) is None:
        return
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.format("headwater_names").option("kind", "kinds").load().schema
    except PySparkException as error:
        if "No module named 'headwater'" in str(error):
            logger.warning(
                "the Python that this session starts, %s, does not find headwater; set "
                "PYSPARK_PYTHON=%s before the session is made, or install headwater there",
                spark.sparkContext.pythonExec,
                sys.executable,
            )


def other_master(spark: SparkSession, master: str | None) -> str | None:
    """Return the master of a session that runs elsewhere than was asked for; else None."""
    runs_at = spark.conf.get("spark.master", None)
    return None if master in (None, runs_at) else runs_at


def make_session(master: str | None, app_name: str, conf: Mapping[str, object]) -> SparkSession:
    """Return the session that is there, or make one; see ``headwater.spark.session``."""
    require_spark()
    from pyspark.sql import SparkSession

    if master is not None and not master.startswith(_MASTERS):
        raise InvalidInput(
            f"no Spark runs at {master!r}; name a master like local[4], spark://host:7077 or yarn"
        )
    there = SparkSession.getActiveSession()
    if there is not None and (runs_at := other_master(there, master)) is not None:
        logger.warning(
            "a session of Spark runs at %s already and is used, not %s; stop it first, or leave "
            "the master out",
            runs_at,
            master,
        )
    submitted = _SUBMITTED in os.environ
    if not submitted:
        prepare_java()
    named = master or str(conf.get("spark.master", "local"))
    is_local = not submitted and named.startswith("local")
    settings: dict[str, object] = dict(_SETTINGS)
    if not submitted:
        # As a URI, which has no spaces: Spark cuts options there.
        quiet = Path(str(files("headwater.spark.engine").joinpath("log4j2.properties"))).as_uri()
        settings["spark.driver.extraJavaOptions"] = (
            f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={quiet}"
        )
        if is_local:
            settings |= _LOCAL_SETTINGS
    settings |= conf
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    with fast_python() if is_local else nullcontext():
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(variable, sys.executable)
        return builder.getOrCreate()
