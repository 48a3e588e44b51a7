"""Tables of Spark's catalog, whose options Spark does not hand to a Python source.

``CREATE TABLE ... USING headwater OPTIONS (...)`` asks the source for its columns, with all
options, and keeps both; a later read gets no options. Our rule finds them in the catalog
(``jvm/TableOptions.java``) and plans the read with them. The plan without them, which Spark makes
first, must not fail, for it is not used. Where it is used, in a session without our rule, the error
says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.errors import InvalidInput
from headwater.spark.engine.failures import one_line

_LOST = (
    "Spark has not handed over the options of this table; read it in a session of "
    "headwater.spark.session(), and write to it or stream from it by .format(...) and .option(...)"
)


def are_lost(options: Mapping[str, str]) -> bool:
    """Return whether the options of a table were lost: no other read comes without any."""
    return not options


class LostReader(DataSourceReader):
    """The plan of a read without options."""

    @one_line()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  Spark's
        """Raise InvalidInput."""
        raise InvalidInput(_LOST)
