"""Spark: streams and topics as sources and sinks, and the jobs of the pipeline.

from headwater.spark import session

spark = session()
spark.read.format("headwater").option("stream", "rides").load().show()

Needs ``pip install 'headwater[spark]'``; PySpark is imported with the first use of a name.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.spark.engine.processes import is_spark_process, quiet_and_freeze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.archive import archive
    from headwater.spark.jobs.backfill import backfill
    from headwater.spark.jobs.compact import compact
    from headwater.spark.jobs.reconcile import reconcile
    from headwater.spark.jobs.restore import restore
    from headwater.spark.jobs.totals import totals
    from headwater.spark.jobs.walk import walk

__all__ = [
    "archive",
    "backfill",
    "compact",
    "reconcile",
    "register",
    "restore",
    "session",
    "totals",
    "walk",
]

# Jobs import PySpark, so each is imported with its first use.
_JOBS = ("archive", "backfill", "compact", "reconcile", "restore", "totals", "walk")

# Spark finds most of them by itself, as the ``DefaultSource`` of a module ``pyspark_...``, and then
# they need not be imported here.
_FORMATS = (
    "headwater",
    "headwater_table",
    "headwater_sql",
    "headwater_queue",
    "headwater_ick",
    "headwater_timeline",
    "headwater_names",
)

# Spark hides the values of options with such names in the plans that it prints; by itself it does
# so for URLs only. Any of these may hold a password.
_REDACTED = "spark.sql.redaction.options.regex"
_SECRET_OPTIONS = "(?i)instances|archive"

# Spark's own processes import a source, and this module with it.
if is_spark_process():
    quiet_and_freeze()


def __getattr__(name: str) -> Any:
    if name not in _JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from headwater.spark.engine.session import require_spark

    require_spark()
    return getattr(import_module(f"headwater.spark.jobs.{name}"), name)


def session(
    master: str | None = None, *, app_name: str = "headwater", **conf: object
) -> SparkSession:
    """Return a session in which everything of Headwater works; makes it when there is none yet.

    ``master`` is a Spark master: ``local[2]``, ``spark://host:7077``, ...; by default it is what
    spark-submit or Spark's own settings say, else this machine with all its cores. ``conf`` holds
    further settings by their full name, as in ``**{"spark.driver.memory": "2g"}``; they override
    ours. Raises SparkMissing, JavaMissing. A first session takes seconds to start.

    Our formats work without it: a session that was made elsewhere gets them by ``register``, or
    finds them by itself through the modules ``pyspark_headwater...``.
    """
    from headwater.spark.engine.session import make_session

    spark = make_session(master, app_name, conf)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make our formats known to a session that was made elsewhere; may be repeated.

    Also makes it safe to push filters down to Python sources (see ``engine/optimizer_rule.py``),
    and lets Spark hide options that may hold passwords in the plans that it prints.
    """
    from headwater.spark.engine.session import require_spark, unknown_formats, warn_of_other_python

    require_spark()
    from headwater.spark.engine.optimizer_rule import install_rule

    unknown = unknown_formats(spark, [*_FORMATS])
    for name in unknown:
        spark.dataSource.register(import_module(f"pyspark_{name}").DefaultSource)
    if unknown:
        warn_of_other_python(spark)
    install_rule(spark)
    hidden = spark.conf.get(_REDACTED) or ""
    if _SECRET_OPTIONS not in hidden:
        spark.conf.set(_REDACTED, f"{hidden}|{_SECRET_OPTIONS}" if hidden else _SECRET_OPTIONS)
