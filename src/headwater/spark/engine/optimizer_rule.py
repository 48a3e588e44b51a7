"""What Spark itself must learn to use our formats well: rules of the optimizer, readers, a writer.

Spark 4.3 plans a Python source once for a DataFrame and lets whatever filters were pushed last
decide what all uses of it read (see ``jvm/OwnScans.java``). A rule of the optimizer corrects that,
for our formats and everybody's. The same rule lets our own formats return columns instead of rows,
and the log return nodes unopened (``jvm/ColumnScan.java``). A strategy of the planner does that for
streaming queries (``jvm/StreamColumns.java``). A second rule lets tasks that write to the log pack
their rows as nodes before Python gets them (``jvm/NodeWrites.java``). Extensions spare our formats
the filters that Spark would push down before the rule, and let streams tell of themselves
(``jvm/OwnTables.java``). A class of Hadoop's kind writes the files of checkpoints without a process
for each step (``jvm/LocalFiles.java``).

All of it is Java, a few pages, compiled by the compiler that Spark brings for its own generated
code. The driver and its executors load it from a jar that is made for the session. It holds on to
inner parts of Spark, and another Spark may lack one of them. So all parts are looked for when a
session is made (``jvm/Internals.java`` has those that a compiler cannot see), and where one is
missing, all of it stays off: Spark applies filters itself and takes rows, which is slower, and the
results are right either way.
"""

from __future__ import annotations

import logging
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from headwater.spark.engine.failures import in_one_line

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# What Spark takes at any time, and where.
_EXPERIMENTAL = (
    ("extraOptimizations", "headwater.OwnScans"),
    ("extraOptimizations", "headwater.NodeWrites"),
    ("extraStrategies", "headwater.StreamColumns"),
)
# Where Spark takes a rule of a kind, and what makes that rule.
_EXTENSIONS = {
    "injectOptimizerRule": "headwater.OwnTables$OfBatches",
    "injectPostHocResolutionRule": "headwater.OwnTables$OfStreams",
}
_INTERNALS = "headwater.Internals"
# Classes that others look for by their names: Spark for a catalog, Hadoop for local files.
_BY_NAME = ("headwater/StoreCatalog", "headwater/LocalFiles")
_HADOOPS_LOCAL_FILES = "org.apache.hadoop.fs.local.LocalFs"
_LOCAL_FILES = ("fs.AbstractFileSystem.file.impl", "headwater.LocalFiles")
_EXTENSIBLE = "org.apache.spark.util.MutableURLClassLoader"

logger = logging.getLogger("headwater.spark")

# What was found out for each application: its rules, strategy and extensions, or None where these
# cannot be used.
_rules: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()


def install_rule(spark: SparkSession) -> None:
    """Give every scan of this session a plan of its own; may be repeated.

    Where this Spark lacks a part that the rule needs, filters are not pushed down to Python sources
    in this session, and one line is logged for the application.
    """
    if getattr(spark, "_jvm", None) is None:
        # A Connect client: the rules of the server are the server's.
        return
    context = spark.sparkContext
    try:
        if context not in _rules:
            _rules[context] = _make_rules(context)
            # In force unless the session has run a query before.
            for kind, made in _rules[context][1].items():
                getattr(spark._jsparkSession.extensions(), kind)(made)
        if _rules[context] is not None:
            for kind, made in _rules[context][0]:
                _add(spark, kind, made)
            _set_local_files(spark)
    except Exception as error:  # noqa: BLE001  nobody knows what another Spark raises
        _rules[context] = None
        logger.warning(
            "filters are not pushed down to Python sources, and our sources return rows instead of "
            "columns, more slowly: Spark %s lacks what our Java needs (%s)",
            spark.version,
            in_one_line(error),
        )
    if _rules[context] is None:
        spark.conf.set(PUSHDOWN, "false")


def _add(spark: SparkSession, kind: str, made: Any) -> None:
    methods = spark._jsparkSession.experimental()
    known = getattr(methods, kind)()
    names = [known.apply(i).getClass().getName() for i in range(known.length())]
    if made.getClass().getName() not in names:
        getattr(methods, f"{kind}_$eq")(known.appended(made))


def _set_local_files(spark: SparkSession) -> None:
    """Let this session write checkpoints on a local disk by ``jvm/LocalFiles.java``.

    Only where the driver is its own executor, so that tasks with state find the class, too, and
    where nobody has chosen another class.
    """
    name, ours = _LOCAL_FILES
    java: Any = spark.sparkContext._jsc
    hadoop = java.hadoopConfiguration()
    is_chosen = spark.conf.get(name, hadoop.get(name)) != _HADOOPS_LOCAL_FILES
    if java.isLocal() and not is_chosen and hadoop.getClassByNameOrNull(ours) is not None:
        spark.conf.set(name, ours)


def _make_rules(context: SparkContext) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """Return rules, strategy and extensions, for the driver, and give all classes to executors.

    Raises LookupError when a part of Spark is missing, and what the JVM raises when the compiler or
    the class loader misses one.
    """
    gateway: Any = context._gateway
    jvm = gateway.jvm
    jar = Path(context._temp_dir) / "headwater-scans.jar"
    classes = _compile(gateway, java_sources())
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = _write_jar(jvm, jar, classes)
    loader = jvm.java.net.URLClassLoader(urls, _parent(jvm))
    for name in classes:
        _load(jvm, name, loader)
    # By way of Java's own classes: Py4J mistakes ours for those of an application before this one.
    if missing := loader.loadClass(_INTERNALS).getField("MISSING").get(None):
        raise LookupError(", ".join(missing))
    context._jsc.addJar(str(jar))
    _offer_by_name(jvm, jar.with_name("headwater-by-name.jar"), classes)
    rules = [(kind, loader.loadClass(name).newInstance()) for kind, name in _EXPERIMENTAL]
    extensions = {kind: loader.loadClass(name).newInstance() for kind, name in _EXTENSIONS.items()}
    return rules, extensions


def _write_jar(jvm: Any, jar: Path, classes: dict[str, bytes]) -> Any:
    """Write classes to a jar; returns its URL."""
    with zipfile.ZipFile(jar, "w") as made:
        for name, code in classes.items():
            made.writestr(name, code)
    return jvm.java.io.File(str(jar)).toURI().toURL()


def _offer_by_name(jvm: Any, jar: Path, classes: dict[str, bytes]) -> None:
    """Let Spark and Hadoop find classes by their names, if classes can be added here.

    The rule has a loader of its own, so that an application after this one gets its own rule.
    """
    loader = _parent(jvm)
    if jvm.java.lang.Class.forName(_EXTENSIBLE).isInstance(loader):
        offered = {name: code for name, code in classes.items() if name.startswith(_BY_NAME)}
        loader.addURL(_write_jar(jvm, jar, offered))
        for name in offered:
            # Now: an application after this one does not find the jar of this one.
            _load(jvm, name, loader)


def _load(jvm: Any, name: str, loader: Any) -> None:
    """Load and link the class of a file, not in the middle of a query."""
    jvm.java.lang.Class.forName(name.removesuffix(".class").replace("/", "."), True, loader)


def java_sources() -> dict[str, str]:
    """Return the text of our Java files by their names."""
    folder = files("headwater.spark.engine").joinpath("jvm")
    return {one.name: one.read_text("utf-8") for one in folder.iterdir() if one.is_file()}


def _compile(gateway: Any, sources: dict[str, str]) -> dict[str, bytes]:
    """Compile Java; returns the classes by the names of their files."""
    jvm = gateway.jvm
    codehaus = jvm.org.codehaus
    resource = codehaus.commons.compiler.util.resource
    units = gateway.new_array(resource.Resource, len(sources))
    for place, (name, text) in enumerate(sources.items()):
        units[place] = resource.StringResource(name, text)
    classes = jvm.java.util.HashMap()
    known = codehaus.janino.ClassLoaderIClassLoader(_parent(jvm))
    compiler = codehaus.janino.Compiler(resource.ResourceFinder.EMPTY_RESOURCE_FINDER, known)
    compiler.setClassFileCreator(resource.MapResourceCreator(classes))
    # With calls of static methods of interfaces.
    compiler.setTargetVersion(8)
    compiler.compile(units)
    return {str(name): bytes(code) for name, code in classes.items()}


def _parent(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()
