"""The parent of the processes of streaming queries, started by ``engine/jvm/ForkedRunner.java``.

It has imported what a query over a stream needs, and forks a process for each query, which answers
at once: to import all of it anew takes half a second of a processor. It has no connection and no
thread but one of the allocator jemalloc, which survives a fork.
"""

import gc

import pyspark.sql.streaming.python_streaming_source_runner  # noqa: F401
from pyspark.daemon import manager

import headwater.spark.log.source
import headwater.spark.log.stream_reader  # noqa: F401
from headwater.spark.engine.processes import quiet_and_freeze

if __name__ == "__main__":
    quiet_and_freeze()
    gc.collect()
    # Its children share the memory of what is imported: no collection may touch these objects.
    gc.freeze()
    manager()
