"""Spark starts the Python of the program, unless the user has named another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.spark.engine.python import fast_python

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def _nobody_named_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


def test_only_archives_of_spark_are_taken_off_the_path(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark")
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    paths = [str(archive), str(tmp_path / "my lib"), str(tmp_path / "other.zip")]
    with fast_python():
        python = os.environ["PYSPARK_PYTHON"]
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == python
        done = subprocess.run(
            [python, "-c", "import os, sys; print(sys.executable, os.environ['PYTHONPATH'])"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.strip() == f"{sys.executable} {os.pathsep.join(paths[1:])}"
    assert {os.environ[name] for name in VARIABLES} == {sys.executable}


def test_a_python_or_a_spark_of_the_users_own_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    with fast_python():
        assert "PYSPARK_PYTHON" not in os.environ
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    with fast_python():
        assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"
        assert "PYSPARK_DRIVER_PYTHON" not in os.environ
