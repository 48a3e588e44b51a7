"""What the commands of a job share: their options, the Spark session, and the summary.

A job is a function of headwater.spark.jobs; its command parses the options, opens a session by
``JobFlags.session``, calls the job, and prints the summary that it returns. Spark itself starts
with the first use that the job makes of the session, so that a job refuses before that what it
cannot use: a name that is unknown, a store or a database that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.option_groups import OptionGroup
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.progress import JobReport, Summary

Name = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="Name of the stream.",
        show_default=False,
        autocompletion=completing.streams,
    ),
]
IsTopic = Annotated[bool, typer.Option("--topic", help="The name is that of a topic.")]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Spark runs: local[4], spark://host:7077, yarn. Default: what spark-submit "
        "or Spark's own settings say, else every core of this machine.",
        show_default=False,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A setting of Spark; may be repeated.", show_default=False
    ),
]

# What goes wrong is printed as one line, not as stacks of Java.
_QUIET = {"spark.log.level": "FATAL"}


@dataclass(frozen=True)
class JobFlags(OptionGroup):
    """The options of every job."""

    master: Master = None
    conf: Conf = None
    as_json: AsJson = False

    @contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """Open a session for the length of a job; raises SparkMissing when there is no Spark.

        A session that was there before stays.
        """
        given = _QUIET | settings(self.conf)
        from headwater.spark.engine.session import require_spark

        require_spark()
        from headwater.spark.engine.failures import translating_errors

        late = _LateSession(self.master, f"headwater {job}", given)
        try:
            with translating_errors():
                # It is none to isinstance, which no job asks.
                yield cast("SparkSession", late)
        finally:
            late.end()

    def report(self) -> JobReport:
        """Return what shows the progress of the job on standard error; --json shows none."""
        from headwater.spark.jobs.progress import JobReport

        return JobReport.of_command(quiet=self.as_json)

    def show(self, summary: Summary) -> None:
        """Print what the job has done."""
        if self.as_json:
            output.show_json(views.jobs.job_view(summary))
            return
        output.say(summary.headline())
        output.show_facts(summary.facts())


class _LateSession:
    """A session of Spark that starts with its first use, which takes many seconds."""

    def __init__(self, master: str | None, app_name: str, conf: dict[str, str]) -> None:
        self._how = (master, app_name, conf)
        self._made: SparkSession | None = None
        self._used: SparkSession | None = None

    def __getattr__(self, name: str) -> Any:
        if self._used is None:
            from pyspark.sql import SparkSession

            from headwater.spark import session

            master, app_name, conf = self._how
            there = SparkSession.getActiveSession()
            if there is None:
                there = self._made = session(master, app_name=app_name, **conf)
            else:
                _refuse_other_master(there, master)
            self._used = there
        return getattr(self._used, name)

    def end(self) -> None:
        """Stop the session, unless it was there before, or never started."""
        if self._made is not None:
            self._made.stop()


def _refuse_other_master(spark: SparkSession, master: str | None) -> None:
    """Refuse a master that a job would not run at, since a session is there already."""
    from headwater.spark.engine.session import other_master

    if (runs_at := other_master(spark, master)) is not None:
        raise InvalidInput(
            f"a session of Spark runs at {runs_at} already, not at {master}; "
            "stop it first, or leave --master out"
        )


@dataclass(frozen=True)
class StoreJobFlags(JobFlags):
    """The options of a job that uses a store."""

    store: StoreUrl = None

    @contextmanager
    def session(self, job: str) -> Iterator[SparkSession]:
        """Open a session as JobFlags does; raises the error of a store that cannot be used."""
        with connected(self.store), super().session(job) as spark:
            yield spark


class NamedLog(TypedDict):
    """What a job works on, as all jobs take it."""

    stream: str | None
    topic: str | None
    url: str | None


@dataclass(frozen=True, kw_only=True)
class LogJobFlags(StoreJobFlags):
    """The options of a job that works on one stream or topic."""

    name: Name
    topic: IsTopic = False

    def log(self) -> NamedLog:
        """Return what the job works on."""
        stream, topic = (None, self.name) if self.topic else (self.name, None)
        return {"stream": stream, "topic": topic, "url": self.store}

    def require_log(self, purpose: str) -> None:
        """Raise UnknownStream or UnknownTopic unless what the job works on is there."""
        from headwater.spark.log.target import named_target

        named_target(**self.log(), purpose=purpose).require()


def settings(words: list[str] | None) -> dict[str, str]:
    """Parse settings of Spark, each as spark.some.key=value."""
    found = pairs(words, "--conf", "a setting like spark.executor.memory=2g")
    for key in found:
        if not key.startswith("spark."):
            raise typer.BadParameter(
                f"{key!r} is not a setting like spark.executor.memory=2g", param_hint="--conf"
            )
    return found


def pairs(words: list[str] | None, option: str, like: str) -> dict[str, str]:
    """Parse words like key=value; ``like`` says what they are, for those that are not."""
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{word!r} is not {like}", param_hint=option)
        found[key] = value
    return found


def entry() -> None:
    """Print the file to give to spark-submit, which takes the same commands.

    spark-submit --master spark://host:7077 $(headwater spark entry) totals ...
    """
    output.say(str(Path(__file__).with_name("submit.py")))
