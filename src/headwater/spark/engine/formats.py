"""What all our formats share: a name, options that are checked, and errors in one line."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import LostReader, SourceOptions
from headwater.spark.engine.writes import (
    BatchWriter,
    QueryWriter,
    SparkWrite,
    producer_of,
    refuse_producer,
)


class SparkFormat(DataSource):
    """A format, as ``format(CALLED)`` names it.

    ``PATHS`` are the options that say what is meant: a path stands for the first of them, unless
    one of them is given.
    """

    CALLED: ClassVar[str]
    # What holds the rows, for people.
    WHAT: ClassVar[str]
    PATHS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return cls.CALLED

    def known(self, names: Collection[str]) -> SourceOptions:
        """Return the options that were given, all of them among these. Raises InvalidInput."""
        return SourceOptions(self.options, names, self.PATHS)


class ReadFormat(SparkFormat):
    """A format that can be read."""

    READ_OPTIONS: ClassVar[tuple[str, ...]]

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns that the options ask for."""
        raise NotImplementedError

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a batch read of these columns. Nothing is changed by it."""
        raise NotImplementedError

    def is_lost(self) -> bool:
        """Return whether Spark has lost the options of a table: no other read has none."""
        return not self.options

    @one_line()
    def schema(self) -> StructType:
        """Return the columns."""
        return self.columns(self.known(self.READ_OPTIONS))

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        if self.is_lost():
            return LostReader()
        return self.plan_read(self.known(self.READ_OPTIONS), schema)


class WriteFormat(SparkFormat):
    """A format that can be written."""

    WRITE_OPTIONS: ClassVar[tuple[str, ...]]

    def plan_write(self, options: SourceOptions, schema: StructType) -> SparkWrite:
        """Check what is to be written, and where, before anything runs. Raises InvalidInput."""
        raise NotImplementedError

    def check(self, options: SourceOptions, *, overwrite: bool, streaming: bool) -> None:  # noqa: ARG002
        """Refuse to replace what is there. Raises InvalidInput."""
        if overwrite:
            raise InvalidInput(
                f"{self.WHAT} is only added to: write with .mode('append'), or "
                ".outputMode('append') in a streaming query"
            )

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        options = self.known(self.WRITE_OPTIONS)
        given = producer_of(options)
        self.check(options, overwrite=overwrite, streaming=False)
        return BatchWriter(self.plan_write(options, schema), given)

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = self.known(self.WRITE_OPTIONS)
        refuse_producer(options)
        self.check(options, overwrite=overwrite, streaming=True)
        return QueryWriter(self.plan_write(options, schema))
