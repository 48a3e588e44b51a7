"""The names of what lies in a store, for the catalog over it (``jvm/StoreCatalog.java``).

A source whose columns are the names: the JVM asks a source for its columns without a job.
"""

from __future__ import annotations

from pyspark.sql.types import StringType, StructField, StructType

from headwater.errors import InvalidInput, UnknownStream, UnknownTopic
from headwater.kernel.inputs import check_name
from headwater.spark.archives.table import absolute_place, archived_streams
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import SparkFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.log.target import StreamOrTopic

# The names of kinds can be asked for where there is no store.
_KINDS = ("streams", "topics", "queues", "channels", "archives", "kinds")


class NamesSource(SparkFormat):
    """The names of all objects of one kind, of the store ``url``, as columns.

    With the option ``name``, that name only, if there is such an object: without a list of all.
    """

    CALLED = "headwater_names"

    @one_line()
    def schema(self) -> StructType:
        """Return a column for each name."""
        options = self.known(("url", "archive", "kind", "name"))
        kind, name = options.choice("kind", _KINDS, "streams"), options.text("name")
        if name is None:
            names = _names(options, kind)
        else:
            names = [name] if _is_there(options, kind, name) else []
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


def _is_there(options: SourceOptions, kind: str, name: str) -> bool:
    """Return whether an object of a kind has the name; none has one that is no name."""
    if kind in ("kinds", "archives"):
        return name in _names(options, kind)
    url, archive = absolute_url(options.text("url")), options.text("archive")
    hw = client(url)
    try:
        if kind == "queues":
            return hw.queue(name).stats().exists
        if kind == "channels":
            return hw.ick_channel(name).stats() is not None
        place = None if archive is None else absolute_place(archive)
        StreamOrTopic(url, check_name(name, kind), kind == "topics", place).require()
    except (InvalidInput, UnknownStream, UnknownTopic):
        return False
    return True
