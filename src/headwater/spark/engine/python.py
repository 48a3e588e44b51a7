"""The Python that Spark starts: this one, with PySpark as it is installed.

Spark puts an archive of PySpark before everything else on the path of its processes. Python
compiles what it imports from an archive at every start, which takes four times as long as to import
the installed package, and a streaming query fails when its process needs more than ten seconds.
Where the archive belongs to the installed package, a wrapper script takes it off the path, and lets
the process of a streaming query connect before it imports (``source_process``).

Spark also puts one of its jars there. Python looks for modules in it, too, and reads the names of
its 6,000 files whenever Spark adds a directory to the path of a process, which is once in each.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.spark.engine.processes import RUNNER
from headwater.spark.engine.wrappers import install_wrapper

if TYPE_CHECKING:
    from pyspark import SparkContext

_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_SETTINGS = ("spark.pyspark.python", "spark.pyspark.driver.python")
_WRAPPER = """#!/bin/sh
# Runs Python without Spark's archives on its path: the same PySpark is installed, and compiled.
# One of them is a jar, in which there is no Python.
left=
IFS=:
for one in $PYTHONPATH; do
  case "$one" in
    {home}/python/lib/*.zip | {home}/jars/*.jar) ;;
    *) left="$left${{left:+:}}$one" ;;
  esac
done
unset IFS
if [ "$1 $2" = "-m {runner}" ]; then
  shift 2
  set -- -m {connecting} "$@"
fi
PYTHONPATH="$left" exec {python} "$@"
"""


@contextmanager
def fast_python() -> Iterator[None]:
    """Let a session of this machine start that Python, unless the user has named another one."""
    named = any(os.environ.get(name, sys.executable) != sys.executable for name in _VARIABLES)
    wrapper = None if named else _wrapper()
    if wrapper is None:
        yield
        return
    os.environ |= dict.fromkeys(_VARIABLES, str(wrapper))
    try:
        yield
    finally:
        # What is started by other means, on other machines too, knows nothing of the wrapper.
        os.environ |= dict.fromkeys(_VARIABLES, sys.executable)


def starts_this_python(context: SparkContext) -> bool:
    """Return whether an application starts its processes on this machine, by this Python."""
    local = (context.master or "").startswith("local")
    named = any(map(context.getConf().contains, _SETTINGS))
    return local and not named and context.pythonExec in (sys.executable, str(_wrapper()))


def _wrapper() -> Path | None:
    """Return the wrapper; None where the archive may be of another PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    if os.environ.get("SPARK_HOME", str(home)) != str(home):
        return None
    script = _WRAPPER.format(
        home=shlex.quote(str(home)),
        python=shlex.quote(sys.executable),
        runner=RUNNER,
        connecting="headwater.spark.engine.source_process",
    )
    return install_wrapper("python", script)
