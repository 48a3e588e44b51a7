"""The notebook from which a data engineer would start does what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark.standalone import ROOT, environment


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_notebook_runs_and_ends(tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "examples" / "spark_notebook.py")]
    bare = {name: value for name, value in environment().items() if name != "HEADWATER_URL"}
    done = subprocess.run(
        words, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "|pilot-0| 2858|" in done.stdout
    assert "Message(offset=1, tag='Ada', value=b'{\"rides\":2858," in done.stdout
    assert "20000 rides in files" in done.stdout
