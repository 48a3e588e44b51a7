"""What the page on Redis clients shows is what they print, with the program that users start."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trustme

from tests.support.resp import redis_cli
from tests.support.servers import Server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "redis-clients.md"


@contextmanager
def serving(*words: str) -> Iterator[int]:
    """Run ``headwater serve --resp``; returns the port of the door."""
    command = [sys.executable, "-c", "from headwater.cli.main import app; app()", "serve"]
    command += ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"rediss?://127.0.0.1:(\d+)", process.stdout.readline())
            assert found is not None
            yield int(found[1])
        finally:
            process.terminate()
            assert process.wait(60) == 0


@pytest.mark.skipif(redis_cli() is None, reason="there is no redis-cli")
def test_redis_cli_prints_what_the_page_shows() -> None:
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    examples = [
        example
        for block in blocks
        for example in re.findall(r"^\$ redis-cli ([^\n]*)\n(.*?)(?=^\$ |\Z)", block, re.M | re.S)
    ]
    assert len(examples) >= 10
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    with Server() as store, serving("--store", store.url, "--workers", "2") as port:
        for words, printed in examples:
            done = subprocess.run(
                ["sh", "-c", f"{shlex.quote(str(redis_cli()))} {words}"],
                env=os.environ | {"PORT": str(port)},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            pattern = re.escape(printed.strip()).replace(r"\.\.\.", "[^\n]+")
            assert re.fullmatch(pattern, done.stdout.strip()), (words, done.stdout)
        exec(program.replace("6390", str(port)), {})


def test_the_door_serves_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    tls = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    with (
        Server() as store,
        serving("--store", store.url, *tls) as port,
        redis.Redis("127.0.0.1", port, ssl=True, ssl_ca_certs=str(tmp_path / "ca.pem")) as client,
    ):
        assert client.ping()
