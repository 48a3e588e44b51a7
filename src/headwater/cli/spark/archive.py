"""``headwater spark archive``, ``restore``, ``archives``: history as Parquet, there and back."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl
from headwater.cli.spark.running import (
    Conf,
    DryRun,
    IsTopic,
    Master,
    Name,
    named_log,
    show_summary,
    spark_session,
)

_PLACE = "A directory, or a URI such as s3://bucket/folder; it may hold archives of many streams."


def archive(
    name: Name,
    to: Annotated[
        str, typer.Option(metavar="PLACE", help=f"Where to. {_PLACE}", show_default=False)
    ],
    topic: IsTopic = False,
    evict: Annotated[
        bool,
        typer.Option("--evict", help="Let the log forget what is archived and needed by nobody."),
    ] = False,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Archive what is new in a stream as Parquet. May be run again after a crash, and regularly.

    Retention waits for the archive from the first run on.
    """
    with spark_session("archive", master, conf) as spark:
        from headwater.spark.jobs.archive import archive as run
        from headwater.spark.jobs.progress import JobReport

        done = run(
            spark,
            **named_log(name, topic, store),
            to=to,
            evict=evict,
            dry_run=dry_run,
            report=JobReport.of_command(quiet=as_json),
        )
    show_summary(done, as_json)


def restore(
    name: Name,
    place: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="The archive.", show_default=False)
    ],
    into: Annotated[
        str,
        typer.Option(metavar="NAME", help="The stream or topic to write to.", show_default=False),
    ],
    topic: IsTopic = False,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="Begin here, not at the first.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="OFFSET", help="End here, not at the last.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Write behind the messages that the target has.")
    ] = False,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring a stream's archive, or a range of it, into a stream; each message once.

    May be run again after a crash: it goes on where it stood. Tags, values and times stay; offsets
    stay when the target is empty, the range begins at 1, and nothing is missing in it.
    """
    with spark_session("restore", master, conf) as spark:
        from headwater.spark.jobs.progress import JobReport
        from headwater.spark.jobs.restore import restore as run

        done = run(
            spark,
            **named_log(name, topic, store),
            archive=place,
            into=into,
            first=first,
            last=last,
            append=append,
            dry_run=dry_run,
            report=JobReport.of_command(quiet=as_json),
        )
    show_summary(done, as_json)


def archives(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=_PLACE, show_default=False)],
    as_json: AsJson = False,
) -> None:
    """List the archives at a place, and what each holds. Needs no Spark."""
    from headwater.spark.archives.manifest import Archive
    from headwater.spark.archives.place import absolute_place, archived_streams

    where = absolute_place(place)
    found = [
        manifest for name in archived_streams(where) if (manifest := Archive(where, name).load())
    ]
    output.show_list(
        found,
        views.archives.ArchiveView.of,
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
