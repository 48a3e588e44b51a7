"""A real Spark cluster on the loopback: a standalone master and two workers, a JVM each.

A process can drive one Spark at a time, and the tests drive a local one. So programs for the
cluster run by ``submit``, in processes of their own, and print what they found as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import pyspark

from headwater.spark.engine.session import prepare_java
from tests.support.servers import until

HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
# Ends the JVM when the test process is gone, however that ended.
_GUARD = '"$@" </dev/null & server=$!; cat >/dev/null; kill -9 $server'


class Standalone:
    """A master and ``workers`` workers of one core each."""

    def __init__(self, workers: int = 2) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hw-spark-"))
        self._guards: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master.Master", "--port", "0")
            self.url = until(lambda: _said(log, r"Starting Spark master at (spark://\S+)"), 120)
            words = ("--cores", "1", "--memory", "700m", "--work-dir", str(self.directory))
            logs = [self._start("worker.Worker", *words, self.url) for _ in range(workers)]
            joined = r"(Successfully registered) with master"
            until(lambda: all(_said(each, joined) for each in logs), 120)
        except BaseException:
            self.close()
            raise

    def _start(self, kind: str, *words: str) -> Path:
        log = self.directory / f"{len(self._guards)}.log"
        command = [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *words]
        self._guards.append(
            subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", *map(str, command)],
                stdin=subprocess.PIPE,
                stdout=log.open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(SPARK_DAEMON_MEMORY="200m", SPARK_LOCAL_IP="127.0.0.1"),
            )
        )
        return log

    def submit(self, program: str, *words: str, **settings: str) -> Any:
        """Run a program on the cluster by spark-submit, and give what it printed last."""
        conf = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            **settings,
        }
        command = [HOME / "bin" / "spark-submit", "--master", self.url]
        for name, value in conf.items():
            command += ["--conf", f"{name}={value}"]
        done = subprocess.run(
            [*map(str, command), str(PROGRAMS / program), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=environment(SPARK_LOCAL_IP="127.0.0.1"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def close(self) -> None:
        """End all processes and remove their files."""
        for guard in self._guards:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process apart: this Python, this Java, this Spark, this code."""
    prepare_java()
    return {
        **os.environ,
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        **more,
    }


def _said(log: Path, pattern: str) -> str | None:
    found = re.search(pattern, log.read_text(errors="replace"))
    return found[1] if found else None
