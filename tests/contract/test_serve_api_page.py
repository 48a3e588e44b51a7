"""What the page on HTTP shows is what curl prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.api import ApiServer
from tests.support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "http.md"


def examples() -> list[tuple[str, str]]:
    """Return every command of the page with what it prints."""
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [
        (command, printed.strip())
        for block in blocks
        for command, printed in re.findall(r"^\$ ([^\n]*)\n(.*?)(?=^\$ |\Z)", block, re.M | re.S)
    ]


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl on the PATH")
def test_curl_prints_what_the_page_shows() -> None:
    found = examples()
    assert len(found) >= 8
    with Server() as store, ApiServer(store.url) as api:
        for command, printed in found:
            done = subprocess.run(
                ["sh", "-c", command],
                env={"URL": f"http://127.0.0.1:{api.port}", "PATH": "/usr/bin:/bin:/usr/local/bin"},
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            pattern = re.escape(printed).replace(r"\.\.\.", ".*?")
            assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), (command, done.stdout)
