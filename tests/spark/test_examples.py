"""The examples that need Spark do what they show."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark.standalone import ROOT, environment


def printed(place: Path, program: str, *options: str) -> str:
    """Run an example with the embedded store of a directory; returns what it prints."""
    words = [sys.executable, str(ROOT / "examples" / program), *options]
    bare = {name: value for name, value in environment().items() if name != "HEADWATER_URL"}
    done = subprocess.run(words, cwd=place, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_notebook_runs_and_ends(tmp_path: Path) -> None:
    out = printed(tmp_path, "spark_notebook.py")
    assert "|pilot-0| 2858|" in out
    assert "Message(offset=1, tag='Ada', value=b'{\"rides\":2858," in out
    assert "20000 rides in files" in out


@pytest.mark.timeout(300)
@pytest.mark.long
def test_one_trace_goes_from_a_request_to_a_batch_of_spark(tmp_path: Path) -> None:
    out = printed(tmp_path, "one_trace.py", "--spark")
    assert out.count("spans:  POST /orders, process orders/mail, send mail") == 2
    assert out.count("linked: batch orders") == 2
