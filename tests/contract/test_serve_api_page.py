"""What the page on HTTP shows is what curl prints."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from headwater.outbox import Outbox
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
def test_curl_prints_what_the_page_shows(tmp_path: Path) -> None:
    found = examples()
    assert len(found) >= 8
    database = f"sqlite:///{tmp_path / 'app.db'}"
    engine = sa.create_engine(database)
    Outbox(engine).create_all()
    engine.dispose()
    with (
        Server() as store,
        Server() as instance,
        ApiServer(store.url, farm=instance.url, db=database) as api,
    ):
        for command, printed in found:
            done = subprocess.run(
                ["sh", "-c", command],
                env={"URL": f"http://127.0.0.1:{api.port}", "PATH": "/usr/bin:/bin:/usr/local/bin"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            pattern = re.escape(printed).replace(r"\.\.\.", ".*?")
            assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), (command, done.stdout)
