"""Spark starts the Python of the program, unless the user has named another one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import InvalidInput
from headwater.spark.engine.processes import RUNNER
from headwater.spark.engine.session import fast_python, make_session

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.fixture(autouse=True)
def _nobody_named_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))


def test_only_archives_of_spark_are_taken_off_the_path(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark")
    home = Path(pyspark.__file__).parent
    archives = [home / "python" / "lib" / "pyspark.zip", home / "jars" / "spark-core.jar"]
    others = [tmp_path / "my lib", tmp_path / "other.zip", tmp_path / "other.jar"]
    paths = [str(one) for one in (*archives, *others)]
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
    assert done.stdout.strip() == f"{sys.executable} {os.pathsep.join(paths[2:])}"
    assert {os.environ[name] for name in VARIABLES} == {sys.executable}


def test_the_process_of_a_streaming_query_connects_before_it_imports_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits ten seconds for it; here, PySpark is not to be had until it has connected."""
    pytest.importorskip("pyspark")
    library = tmp_path / "lib"
    (library / "pyspark" / "sql" / "streaming").mkdir(parents=True)
    for folder in ("pyspark", "pyspark/sql", "pyspark/sql/streaming"):
        (library / folder / "__init__.py").touch()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (library / "pyspark" / "__init__.py").write_text(f"open({str(gate)!r}).close()")
    (library / "pyspark" / "util.py").write_text("def local_connect_and_auth(*_): 1 / 0")
    (library / "pyspark/sql/streaming/python_streaming_source_runner.py").write_text(
        "import os, sys\n"
        "from pyspark.util import local_connect_and_auth\n"
        "file, sock = local_connect_and_auth(os.environ['PYTHON_WORKER_FACTORY_SOCK_PATH'], None)\n"
        "file.write((__name__ + ' ' + sys.modules['__main__'].__spec__.name).encode())\n"
        "file.flush()\n"
    )
    monkeypatch.chdir(tmp_path)
    with fast_python(), socket.socket(socket.AF_UNIX) as server:
        server.bind("spark.sock")
        server.listen()
        server.settimeout(60)
        paths = {"PYTHONPATH": str(library), "PYTHON_WORKER_FACTORY_SOCK_PATH": "spark.sock"}
        with subprocess.Popen(
            [os.environ["PYSPARK_PYTHON"], "-m", RUNNER],
            env=os.environ | paths,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                connection, _ = server.accept()
                gate.write_bytes(b"")
                with connection, connection.makefile("rb") as file:
                    assert file.read() == f"__main__ {RUNNER}".encode()
                assert process.communicate(timeout=60)[1] == b""
            finally:
                process.kill()
        assert process.returncode == 0


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


def test_a_master_that_is_none_is_refused_before_java_starts() -> None:
    with pytest.raises(InvalidInput, match=r"'nowhere'; name a master like local\[4\]"):
        make_session("nowhere", "headwater", {})
