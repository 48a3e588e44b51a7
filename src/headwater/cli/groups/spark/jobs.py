"""Commands that run a job of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

import typer

from headwater import views
from headwater.cli import completing, output
from headwater.cli.groups.timeline.records import FarmFlags, Keep, Rate
from headwater.cli.options import (
    AsJson,
    DatabaseUrl,
    DryRun,
    OptionGroup,
    StoreUrl,
    connected,
    duration_ms,
    grouped,
)
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.jobs.progress import JobReport, Summary


# ── Running ───────────────────────────────────────────────────────────────────────────────────────
# What the commands of a job share: their options, the Spark session, and the summary.
#
# A job is a function of headwater.spark.jobs; its command parses the options, opens a session by
# ``JobFlags.session``, calls the job, and prints the summary that it returns. Spark itself starts
# with the first use that the job makes of the session, so that a job refuses before that what it
# cannot use: a name that is unknown, a store or a database that is not there.


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
    output.say(str(Path(__file__).with_name("reconcile.py")))


# ── Archive ───────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark archive``, ``restore``, ``archives``: history as Delta tables, there and back.


_PLACE = "A directory, or a URI such as s3://bucket/folder; it may hold archives of many streams."


@grouped
def archive(
    to: Annotated[
        str, typer.Option(metavar="PLACE", help=f"The archive. {_PLACE}", show_default=False)
    ],
    *,
    evict: Annotated[
        bool,
        typer.Option("--evict", help="Then evict what is archived and no longer needed."),
    ] = False,
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Archive the new messages of a stream as a Delta table; run it regularly.

    Retention waits for the archive from the first run on.
    """
    with job.session("archive") as spark:
        from headwater.spark.jobs.archive import archive as run

        done = run(
            spark,
            **job.log(),
            to=to,
            evict=evict,
            dry_run=dry_run,
            report=job.report(),
        )
    job.show(done)


@grouped
def restore(
    place: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="The archive.", show_default=False)
    ],
    into: Annotated[
        str,
        typer.Option(metavar="NAME", help="The stream or topic to write to.", show_default=False),
    ],
    *,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="The first offset to restore.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="The last offset to restore.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Write after the messages that the target has.")
    ] = False,
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Write a stream's archive, or a range of it, to a stream; each message once.

    Run it again after a crash: it continues where it was. Tags, values and times are kept; offsets
    are kept when the target is empty, the range begins at 1, and nothing is missing in it.
    """
    with job.session("restore") as spark:
        from headwater.spark.jobs.restore import restore as run

        done = run(
            spark,
            **job.log(),
            archive=place,
            into=into,
            first=first,
            last=last,
            append=append,
            dry_run=dry_run,
            report=job.report(),
        )
    job.show(done)


def archives(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=_PLACE, show_default=False)],
    as_json: AsJson = False,
) -> None:
    """List the archives in a directory, and what each holds. Spark is not needed."""
    from headwater.spark.archives.table import Archive, absolute_place, archived_streams

    where = absolute_place(place)
    found = [
        contents for name in archived_streams(where) if (contents := Archive(where, name).load())
    ]
    output.show_list(
        found,
        views.queries.archive_view,
        {
            "stream": lambda one: one.stream,
            "first": lambda one: one.first,
            "last": lambda one: one.last,
            "messages": lambda one: one.rows,
            "files": lambda one: len(one.files),
            "size": lambda one: output.size_text(one.bytes),
            "gaps": lambda one: ", ".join(output.range_text(*gap) for gap in one.gaps) or None,
        },
        as_json,
        nothing="no archives here: headwater spark archive makes one",
    )


# ── Backfill ──────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark backfill``: a table or files into the log, a queue or a list, once.


@grouped
def backfill(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The name of this backfill, under which it continues after a crash.",
            show_default=False,
        ),
    ],
    *,
    db: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="HEADWATER_DB",
            help="The database of --table or --query: sqlite:///file or postgresql://….",
            show_default=False,
        ),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Read this table.")] = None,
    query: Annotated[str | None, typer.Option(metavar="SQL", help="Read this query.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Read this file or folder; may be repeated.", show_default=False
        ),
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="The format of the files: parquet, csv, json, orc.")
    ] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="The columns of the files: 'id bigint, name string'."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of Spark's reader, such as header=true; may be repeated.",
            show_default=False,
        ),
    ] = None,
    stream: Annotated[str | None, typer.Option(help="Write to this stream.")] = None,
    topic: Annotated[str | None, typer.Option(help="Write to this topic, by tag.")] = None,
    queue: Annotated[str | None, typer.Option(help="Push to this queue.")] = None,
    ick: Annotated[str | None, typer.Option(metavar="KEY", help="Add to this Ick.")] = None,
    channel: Annotated[str | None, typer.Option(help="Add to this channel.")] = None,
    timelines: Annotated[
        str | None,
        typer.Option(
            metavar="FARM", help="Insert into timelines: tag is the key, value the member."
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Timelines: a key shows at most N elements.", show_default="10000"
        ),
    ] = None,
    keep: Keep = None,
    tag: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the tag, or of a list's member."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the value. Default: the row as JSON."),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of a member's score. Default: it is 0."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column to sort by. Default: the primary key of a table.",
        ),
    ] = None,
    chunk_rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Write about N rows at once.")
    ] = 500_000,
    dry_run: DryRun = False,
    job: StoreJobFlags,
) -> None:
    """Write the rows of a table, a query or files to one place, each once.

    Run it again under the same name after a crash: it continues, and writes no row twice.
    """
    options = pairs(option, "--option", "an option like header=true")
    with job.session("backfill") as spark:
        from headwater.spark.jobs.backfill import backfill as run

        done = run(
            spark,
            name,
            db=db if table or query else None,
            table=table,
            query=query,
            files=files or (),
            format=file_format,
            schema=schema,
            options=options,
            stream=stream,
            topic=topic,
            queue=queue,
            ick=ick,
            channel=channel,
            timelines=timelines,
            max_size=max_size,
            keep=keep,
            url=job.store,
            tag=tag,
            value=value,
            score=score,
            order_by=order_by,
            chunk_rows=chunk_rows,
            dry_run=dry_run,
            report=job.report(),
        )
    job.show(done)


# ── Compact ───────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark compact``: the last message of every tag, for logs of any size.


@grouped
def compact(
    *,
    markers: Annotated[
        str,
        typer.Option(
            metavar="SPAN",
            help="The age after which delete markers are removed, once every reader is past them.",
        ),
    ] = "24h",
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Keep the last message of every tag; offsets do not change. It may be run again after a crash.

    The exit code is 1 when others changed parts of the log at the same moment; these parts are left
    as they are.
    """
    marker_ms = duration_ms(markers, "--markers")
    with job.session("compact") as spark:
        from headwater.spark.jobs.compact import compact as run

        done = run(
            spark,
            **job.log(),
            marker_ms=marker_ms,
            dry_run=dry_run,
            report=job.report(),
        )
    job.show(done)
    raise typer.Exit(1 if done.left else 0)


# ── Totals ────────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark totals``: add up a stream or topic into SQL.


class OnGap(StrEnum):
    """What to do about messages that were evicted before they were read."""

    STOP = "stop"
    SKIP = "skip"


@grouped
def totals(
    db: DatabaseUrl,
    value: Annotated[
        str,
        typer.Option(metavar="FIELD", help="The field to add up, an integer.", show_default=False),
    ],
    *,
    job_name: Annotated[
        str, typer.Option("--job", help="The name under which the sums are kept.")
    ] = "totals",
    per: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FIELD",
            help="Add up for each value of a field; may be repeated.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            metavar="SPAN", help="Also add up for each window of this length; 0: no windows."
        ),
    ] = "1m",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Add up what is there, then end.")
    ] = False,
    every: Annotated[
        str, typer.Option(metavar="SPAN", help="How often to look for new messages.")
    ] = "1s",
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Add up to N messages in one transaction.")
    ] = 200_000,
    on_gap: Annotated[
        OnGap, typer.Option(help="What to do about messages that were evicted unread.")
    ] = OnGap.STOP,
    anew: Annotated[
        bool, typer.Option("--anew", help="Remove the sums, and begin at the first message.")
    ] = False,
    dry_run: DryRun = False,
    job: LogJobFlags,
) -> None:
    """Add up a stream or topic into the table headwater_totals, each record once.

    It continues where it was, until Ctrl-C or SIGTERM, or with --available-now until the end of the
    log.
    """
    window_ms, every_ms = duration_ms(window, "--window"), duration_ms(every, "--every")
    with job.session("totals") as spark:
        from headwater.kernel.stopping import StopSignal, stop_on_signals
        from headwater.spark.jobs.folding import Shape
        from headwater.spark.jobs.totals import totals as add_up

        shape = Shape(value, _fields(per or []), window_ms)
        job.require_log("to add up")
        stop = StopSignal()
        with stop_on_signals(stop.set):
            done = add_up(
                spark,
                **job.log(),
                db=db,
                job=job_name,
                shape=shape,
                available_now=available_now,
                every_ms=every_ms,
                batch=batch,
                on_gap=on_gap.value,
                anew=anew,
                dry_run=dry_run,
                report=job.report(),
                stop=stop,
            )
    job.show(done)


def _fields(words: list[str]) -> dict[str, str]:
    """Parse what sums are kept per: a name and its field, which may be the same."""
    return {name: field or name for name, _, field in (word.partition("=") for word in words)}


# ── Walk ──────────────────────────────────────────────────────────────────────────────────────────
# ``headwater spark walk``: all timelines of a farm compared and repaired, by many tasks.


@grouped
def walk(
    farm: FarmFlags,
    *,
    rate: Rate = 10_000,
    dry_run: DryRun = False,
    job: JobFlags,
) -> None:
    """Compare all timelines on all clusters, repair what differs, and show who was behind.

    The exit code is 1 when something could not be read or written.
    """
    with job.session("walk") as spark:
        from headwater.spark.jobs.walk import walk as run

        done = run(
            spark,
            farm.instances,
            rate=rate,
            dry_run=dry_run,
            report=job.report(),
            **farm.arguments(),
        )
    job.show(done)
    raise typer.Exit(0 if done.whole else 1)
