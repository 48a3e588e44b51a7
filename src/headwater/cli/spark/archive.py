"""``headwater spark archive``, ``restore``, ``archives``: history as Parquet, there and back."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.option_groups import grouped
from headwater.cli.options import AsJson, DryRun
from headwater.cli.spark.running import LogJobFlags

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
    """Archive the new messages of a stream as Parquet; run it regularly, and again after a crash.

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
    from headwater.spark.archives.manifest import Archive, absolute_place, archived_streams

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
