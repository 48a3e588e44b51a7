"""What Spark itself must learn to scan our sources well: a rule of the optimizer, and readers.

Spark 4.3 plans a Python source once for a DataFrame and lets whatever filters were pushed last
decide what all uses of it read (see ``jvm/OwnScans.java``). A rule of the optimizer mends that, for
our formats and everybody's. Where it cannot be installed, filters are not handed down: Spark
applies them itself, and results are right either way.

The same rule lets our own formats give columns instead of rows, and the log give nodes unopened
(``jvm/ColumnScan.java``); where that cannot be, they give rows, more slowly.

All of it is Java, a few pages, compiled by the compiler that Spark brings for its own generated
code. The driver and its executors load it from a jar that is made for the session.
"""

from __future__ import annotations

import logging
import zipfile
from importlib.resources import files
from pathlib import Path
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
            getattr(methods, "extraOptimizations_$eq")(rules.appended(_rule(spark, jvm)))
    except (Py4JError, OSError) as error:
        logger.warning("filters are not handed down to Python sources (%s)", error)
        spark.conf.set(PUSHDOWN, "false")


def _rule(spark: SparkSession, jvm: Any) -> Any:
    """Make the rule, in a class loader that sees all our classes."""
    gateway: Any = spark.sparkContext._gateway
    jar = Path(spark.sparkContext._temp_dir) / "headwater-scans.jar"
    if not jar.exists():
        classes = _compile(gateway)
        with zipfile.ZipFile(jar, "w") as made:
            for name, code in classes.items():
                made.writestr(name, code)
        spark.sparkContext._jsc.addJar(str(jar))
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, _parent(jvm))
    rule = loader.loadClass(_RULE).newInstance()
    if lacking := rule.lacking():
        logger.warning("our sources give rows instead of columns, more slowly (%s)", lacking)
    return rule


def _compile(gateway: Any) -> dict[str, bytes]:
    """Compile our Java; gives the classes by the names of their files."""
    jvm = gateway.jvm
    codehaus = jvm.org.codehaus
    resource = codehaus.commons.compiler.util.resource
    sources = [
        one for one in files("headwater.spark.engine").joinpath("jvm").iterdir() if one.is_file()
    ]
    units = gateway.new_array(resource.Resource, len(sources))
    for place, source in enumerate(sources):
        units[place] = resource.StringResource(source.name, source.read_text("utf-8"))
    classes = jvm.java.util.HashMap()
    known = codehaus.janino.ClassLoaderIClassLoader(_parent(jvm))
    compiler = codehaus.janino.Compiler(resource.ResourceFinder.EMPTY_RESOURCE_FINDER, known)
    compiler.setClassFileCreator(resource.MapResourceCreator(classes))
    compiler.compile(units)
    return {str(name): bytes(code) for name, code in classes.items()}


def _parent(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()
