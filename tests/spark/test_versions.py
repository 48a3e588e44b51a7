"""From outside: every Spark that we allow gives the same rows, in our session and by Connect."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater import Stream
from headwater.errors import SparkMissing
from headwater.spark.engine import session
from tests.support.spark.predicates import LONG_SEEDS
from tests.support.spark.standalone import PROGRAMS, ROOT

# The newest release of each; the last one is that of these tests.
VERSIONS = ("4.1.4", "4.2.1", "4.3.0")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_spark_gives_the_same_rows_in_every_session(
    version: str, embedded_url: str, make_embedded_stream: Callable[[int], Stream], tmp_path: Path
) -> None:
    stream = make_embedded_stream(3000)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    wanted = (f"{wheel}[spark]", f"pyspark[connect]=={version}")
    subprocess.run([python, "-m", "pip", "install", "-qq", *wanted], check=True, cwd=tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PY")}
    # What a Connect server starts; our own session finds it itself.
    kept["PYSPARK_PYTHON"] = str(python)

    def run(program: str, *words: str) -> Any:
        # A Connect server listens at one port, whoever starts it: other workers wait.
        with (Path(tempfile.gettempdir()) / "headwater-test-connect").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            done = subprocess.run(
                [python, PROGRAMS / program, *words, embedded_url, stream.name],
                cwd=tmp_path,
                env=kept,
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert "replaced a statically registered data source" not in done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    for kind in ("session", "connect"):
        found = run("any_version.py", kind)
        assert found["version"] == version
        assert found["both"] == 4 + 50
        assert found["again"] == [4, 3000, 50]
        assert found["joined"] == 4 * 50
        assert found["written"][1] % 3000 == 0
        if kind == "session":
            assert found["rules"] == 2
            # Spark 4.1 cannot stream from us.
            of_ours = version != "4.1.4"
            assert (found["source"] == f"headwater stream '{stream.name}'") is of_ours
    if version == VERSIONS[-1]:
        compared = run("compare_with_parquet.py")
        assert compared == {"rows": 3000, "seeds": LONG_SEEDS, "others": []}


def test_an_older_spark_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "version", lambda _: "4.0.1")
    with pytest.raises(SparkMissing, match=r"PySpark 4\.0\.1 is too old, 4\.1 or later is needed"):
        session.require_spark()
