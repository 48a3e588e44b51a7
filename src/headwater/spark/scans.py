"""Filters handed down to Python sources, made sound: every scan of a query gets a plan of its own.

Spark 4.3 plans a Python source once for a DataFrame and lets whatever filters were pushed last
decide what all uses of it read (see ``OwnScans.java``). A rule of the optimizer mends that, for our
formats and everybody's. Where it cannot be installed, filters are not handed down: Spark applies
them itself, and results are right either way.
"""

from __future__ import annotations

import logging
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_RULE = "headwater.OwnScans"

logger = logging.getLogger("headwater.spark")


def own_scans(spark: SparkSession) -> None:
    """Give every scan a plan of its own in this session; may be repeated."""
    from py4j.protocol import Py4JError

    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        # A Connect client: the rules of the server are the server's.
        return
    try:
        methods = spark._jsparkSession.experimental()
        rules = methods.extraOptimizations()
        names = [rules.apply(i).getClass().getName() for i in range(rules.length())]
        if _RULE not in names:
            getattr(methods, "extraOptimizations_$eq")(rules.appended(_compile(jvm)))
    except Py4JError as error:
        logger.warning("filters are not handed down to Python sources (%s)", error)
        spark.conf.set(PUSHDOWN, "false")


def _compile(jvm: Any) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(files("headwater.spark").joinpath("OwnScans.java").read_text("utf-8"))
    return compiler.getClassLoader().loadClass(_RULE).newInstance()
