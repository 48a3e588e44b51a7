"""The names of what lies in a store, for the catalog over it (``jvm/StoreCatalog.java``).

A source whose columns are the names: the JVM asks a source for its columns without a job.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from headwater.spark.archives.place import absolute_place, archived_streams
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions

# The names of kinds can be asked for where there is no store.
_KINDS = ("streams", "topics", "queues", "channels", "archives", "kinds")


class NamesSource(DataSource):
    """The names of all objects of one kind, of the store ``url``, as columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_names"

    @one_line()
    def schema(self) -> StructType:
        """Return a column for each name."""
        options = SourceOptions(self.options, ("url", "archive", "kind"))
        names = _names(options, options.choice("kind", _KINDS, "streams"))
        return StructType([StructField(name, StringType()) for name in names])


def _names(options: SourceOptions, kind: str) -> list[str]:
    if kind == "kinds":
        return [*_KINDS]
    if kind == "archives":
        return archived_streams(absolute_place(options.required("archive")))
    hw = client(absolute_url(options.text("url")))
    return {
        "streams": hw.streams,
        "topics": hw.topics,
        "queues": hw.queues,
        "channels": hw.ick_channels,
    }[kind]()
