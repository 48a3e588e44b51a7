"""What a failed piece of Spark's work means: the error of ours within, or Spark's own in one line.

Errors that are raised in a task, in a plan or in the function of a micro-batch reach the driver as
text inside an error of Spark. ``one_line`` keeps that text short, ``translating_errors`` turns it
back into the error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from headwater import errors
from headwater.errors import HeadwaterError, SparkFailed

# As Python spells an error that ends a worker, up to what Spark adds to it.
_OURS = re.compile(
    r"\bheadwater\.errors\.(\w+): (.*?)\s*(?=\n?\s*SQLSTATE: |\n\n|\n\s+at |\n===|\Z)", re.DOTALL
)
_CALLED = re.compile(r"^An error occurred while calling \S+\.\s*:\s*")
_SPARKS_OWN = re.compile(r"\s*(?:SQLSTATE: \w+|\n===|\n\s+at |JVM stacktrace).*", re.DOTALL)


def translated(error: BaseException) -> HeadwaterError:
    """Return the error of ours that an error of Spark stands for, else SparkFailed."""
    if isinstance(error, HeadwaterError):
        return error
    for name, message in _OURS.findall(str(error)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HeadwaterError):
            # With its message, which is all that Spark has kept of it.
            found: HeadwaterError = kind.__new__(kind)
            found.args = (message,)
            return found
    return SparkFailed(in_one_line(error))


def in_one_line(error: BaseException) -> str:
    """Return the message of an error of Spark or of its JVM, without codes and stacks."""
    text = _SPARKS_OWN.sub("", _CALLED.sub("", str(error)))
    return " ".join(text.split()) or repr(error)


@contextmanager
def one_line() -> Iterator[None]:
    """Let Spark report an error of ours by its message alone, whatever the session's settings are.

    For what runs in Spark's Python processes, which end with the error.
    """
    try:
        yield
    except HeadwaterError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def translating_errors() -> Iterator[None]:
    """Raise the error that an error of Spark stands for in its place."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise translated(error) from error
