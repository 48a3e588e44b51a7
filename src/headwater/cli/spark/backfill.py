"""``headwater spark backfill``: a table or files into the log, a queue or a list, once."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli.options import AsJson, StoreUrl
from headwater.cli.spark.running import Conf, DryRun, Master, show_summary, spark_session


def backfill(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What it goes on by after a crash.", show_default=False
        ),
    ],
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
            metavar="PATH", help="Read these files; may be given several times.", show_default=False
        ),
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", help="Of what kind they are: parquet, csv, json, orc.")
    ] = "parquet",
    schema: Annotated[
        str | None,
        typer.Option(metavar="DDL", help="Their columns, as in 'id bigint, name string'."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="An option of Spark's reader, as header=true; may be given several times.",
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
    tag: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column that is the tag; in a list, the member."),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column that is the value; else the row as JSON."),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of a member's score; else it is 0."),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="Write in this order; a table's else by its primary key."
        ),
    ] = None,
    chunk_rows: Annotated[
        int, typer.Option(min=1, help="About so many rows arrive at once.")
    ] = 500_000,
    dry_run: DryRun = False,
    store: StoreUrl = None,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a table, a query or files to one place, each once.

    Run it again under the same name after a crash, and it goes on; what is done stays done.
    """
    options = _pairs(option)
    with spark_session("backfill", master, conf) as spark:
        from headwater.spark.jobs.backfill import backfill as run
        from headwater.spark.jobs.progress import JobReport

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
            url=store,
            tag=tag,
            value=value,
            score=score,
            order_by=order_by,
            chunk_rows=chunk_rows,
            dry_run=dry_run,
            report=JobReport.of_command(quiet=as_json),
        )
    show_summary(done, as_json)


def _pairs(words: list[str] | None) -> dict[str, str]:
    found = {}
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise typer.BadParameter(
                f"{word!r} is not an option like header=true", param_hint="--option"
            )
        found[key] = value
    return found
