"""What the commands of a job share: their options, the Spark session, and the summary.

A job is a function of headwater.spark.jobs; its command parses the options, opens a session by
``spark_session``, calls the job, and prints the summary that it returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from headwater import views
from headwater.cli import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.progress import Summary

Name = Annotated[
    str, typer.Argument(metavar="STREAM", help="Name of the stream.", show_default=False)
]
IsTopic = Annotated[bool, typer.Option("--topic", help="The name is that of a topic.")]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn. Without it what spark-submit "
        "or Spark's own settings say, else every core of this machine.",
        show_default=False,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A setting of Spark; may be given several times.",
        show_default=False,
    ),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")]


class NamedLog(TypedDict):
    """What a job works on, as all jobs take it."""

    stream: str | None
    topic: str | None
    url: str | None


# An error is one line, not stacks of Java.
_QUIET = {"spark.log.level": "FATAL"}


def named_log(name: str, is_topic: bool, store: str | None) -> NamedLog:
    """Return what a job works on: the stream or the topic of that name."""
    return {
        "stream": None if is_topic else name,
        "topic": name if is_topic else None,
        "url": store,
    }


def settings(words: list[str] | None) -> dict[str, str]:
    """Understand settings of Spark, each as spark.some.key=value."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key.startswith("spark."):
            raise typer.BadParameter(
                f"{word!r} is not a setting like spark.executor.memory=2g", param_hint="--conf"
            )
        found[key] = value
    return found


@contextmanager
def spark_session(job: str, master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """Open a session for the length of a job; raises SparkMissing when there is no Spark.

    One that was there before stays.
    """
    given = _QUIET | settings(conf)
    from headwater.spark import session
    from headwater.spark.engine.session import require_spark

    require_spark()
    from pyspark.sql import SparkSession

    from headwater.spark.engine.failures import translating_errors

    found = SparkSession.getActiveSession()
    spark = found or session(master, app_name=f"headwater {job}", **given)
    try:
        with translating_errors():
            yield spark
    finally:
        if found is None:
            spark.stop()


def show_summary(summary: Summary, as_json: bool) -> None:
    """Print what a job has done."""
    if as_json:
        output.show_json(views.jobs.job_view(summary))
        return
    output.say(summary.headline())
    output.show_facts(summary.facts())


def entry() -> None:
    """Print the file to hand to spark-submit, which takes the same commands.

    spark-submit --master spark://host:7077 $(headwater spark entry) totals ...
    """
    output.say(str(Path(__file__).with_name("submit.py")))
