"""The reference of Spark describes every option of every format, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from headwater.spark import icks, queues, timelines
from headwater.spark.log import sink as log_sink
from headwater.spark.log import source as log_source
from headwater.spark.sql_sink import source as sql_sink
from headwater.spark.tables import source as tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def read_and_written(read: Iterable[str], written: Iterable[str]) -> dict[str, str]:
    """Say of each option where it may stand."""
    where = dict.fromkeys(read, "read") | dict.fromkeys(written, "write")
    return where | dict.fromkeys(set(read) & set(written), "both")


# Each table of options, in the order of the page, and where its options may stand.
TABLES = {
    "read of a log": dict.fromkeys(log_source.READ_OPTIONS, "both")
    | dict.fromkeys(log_source._BATCH_ONLY, "batch")
    | dict.fromkeys(log_source._STREAM_ONLY, "streaming"),
    "write to a log": dict.fromkeys(log_sink.WRITE_OPTIONS, "both")
    | dict.fromkeys(("producer", "sequence"), "batch"),
    "write to SQL": dict.fromkeys(sql_sink.WRITE_OPTIONS, "both")
    | dict.fromkeys(("producer", "sequence"), "batch"),
    "queues": read_and_written(queues.READ_OPTIONS, queues.WRITE_OPTIONS)
    | dict.fromkeys(("producer", "sequence"), "batch write"),
    "dirty lists": read_and_written(icks.READ_OPTIONS, icks.WRITE_OPTIONS),
    "timelines": read_and_written(timelines.READ_OPTIONS, timelines.WRITE_OPTIONS),
    "tables": dict.fromkeys(tables.OPTIONS),
}


def tables_of(page: str) -> list[dict[str, str | None]]:
    """Return the tables of options of a page: each option, and where it may stand."""
    found = []
    for heading, rows in re.findall(
        r"^(\| option \|[^\n]*)\n\|[-|]+\n((?:\|[^\n]*\n)+)", page, re.MULTILINE
    ):
        cells = [row.split("|")[1:3] for row in rows.splitlines()]
        within = "| in |" in heading
        found.append(
            {
                name: where.strip() if within else None
                for names, where in cells
                for name in re.findall(r"`(\w+)`", names)
            }
        )
    return found


def test_every_table_of_options_is_compared() -> None:
    assert len(tables_of(PAGE.read_text())) == len(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_option_of_a_format_is_in_the_reference_and_no_other(name: str) -> None:
    told = tables_of(PAGE.read_text())[list(TABLES).index(name)]
    assert told == TABLES[name]
