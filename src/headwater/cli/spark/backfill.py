"""``headwater spark backfill``: a table or files into the log, a queue or a list, once."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.option_groups import grouped
from headwater.cli.options import DryRun
from headwater.cli.spark.running import StoreJobFlags, pairs
from headwater.cli.timeline.records import Keep


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
