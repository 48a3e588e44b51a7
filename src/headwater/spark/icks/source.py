"""``format("headwater_ick")`` itself: its options, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.ick.keys import MAX_SHARDS
from headwater.spark.engine.accepted_columns import refuse_other_schema, refuse_overwrite
from headwater.spark.engine.connections import absolute_url
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.idempotent_writers import IdempotentStreamWriter, IdempotentWriter
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.table_options import LostReader, are_lost
from headwater.spark.icks.reader import COLUMNS, DirtyReader
from headwater.spark.icks.sink import ACCEPTED, ACCEPTED_BY_CHANNEL, add_rows
from headwater.spark.icks.target import DirtyList

READ_OPTIONS = ("url", "ick", "channel")
WRITE_OPTIONS = (*READ_OPTIONS, "shards")


class IckSource(DataSource):
    """The dirty list that the option ``ick`` or ``channel`` names, of the store ``url``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_ick"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns of the members."""
        _dirty_list(_options(self.options, READ_OPTIONS))
        return COLUMNS

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the list; nothing of it is changed or reserved."""
        if are_lost(self.options):
            return LostReader()
        refuse_other_schema(schema, COLUMNS, "a dirty list")
        return DirtyReader(_dirty_list(_options(self.options, READ_OPTIONS)))

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        options = _options(self.options, WRITE_OPTIONS)
        target, names = _write_to(options, schema, overwrite)
        return IdempotentWriter(partial(add_rows, target), names)

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = _options(self.options, WRITE_OPTIONS)
        target, names = _write_to(options, schema, overwrite)
        return IdempotentStreamWriter(partial(add_rows, target), names)


def _options(given: Mapping[str, str], known: Sequence[str]) -> SourceOptions:
    return SourceOptions(given, known, "ick", ["channel"])


def _dirty_list(options: SourceOptions) -> DirtyList:
    ick, channel = options.text("ick"), options.text("channel")
    if (ick is None) == (channel is None):
        raise InvalidInput("name a dirty list by one of the options 'ick' and 'channel'")
    shards = options.number("shards", 1, MAX_SHARDS) if "shards" in options else None
    if shards is not None and channel is None:
        raise InvalidInput("option 'shards' is for a channel; leave it out for an Ick")
    url = absolute_url(options.text("url"))
    return DirtyList(url, ick or channel or "", channel is not None, shards)


def _write_to(
    options: SourceOptions, schema: StructType, overwrite: bool
) -> tuple[DirtyList, list[str]]:
    """Return where rows go, and the names of their columns. Raises InvalidInput."""
    refuse_overwrite(overwrite, "a dirty list")
    found = _dirty_list(options)
    accepted = ACCEPTED_BY_CHANNEL if found.is_channel else ACCEPTED
    names = accepted.accept(schema, options).names
    # Raises now if the name is invalid, or something else lies there.
    found.exists()
    return found, names
