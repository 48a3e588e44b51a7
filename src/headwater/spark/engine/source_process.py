"""The Python process of a streaming source, which connects to Spark before it imports PySpark.

Spark gives the process of each streaming query ten seconds to connect, which cannot be set, and
PySpark connects when all that it needs is imported. On a busy machine that takes most of these
seconds, and the query fails. The wrapper of a local session starts this module in place of
PySpark's, which then gets the connection that is there.
"""

from __future__ import annotations

import os
import runpy
import socket
from typing import Any

from headwater.spark.engine.processes import RUNNER

_SOCKET = "PYTHON_WORKER_FACTORY_SOCK_PATH"


def connect_first() -> None:
    """Connect, if Spark listens on a unix socket, and run PySpark's module with the connection."""
    path = os.environ.get(_SOCKET)
    if path is not None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        _hand_over(path, connection)
    runpy.run_module(RUNNER, run_name="__main__", alter_sys=True)


def _hand_over(path: str, connection: socket.socket) -> None:
    """Let PySpark find the connection where it would connect."""
    import pyspark.util

    connect = pyspark.util.local_connect_and_auth

    def connected(where: str | int | None, secret: str | None) -> tuple[Any, ...]:
        if where != path:
            return connect(where, secret)
        buffer = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
        return connection.makefile("rwb", buffer), connection

    pyspark.util.local_connect_and_auth = connected  # type: ignore[assignment]


if __name__ == "__main__":
    connect_first()
