"""kill -9 of servers, writers and members in mid-work: nothing acknowledged is lost, nothing twice.

The schedule is `headwater verify`, in its own process. HEADWATER_SEED chooses what is killed when;
HEADWATER_LONG multiplies how long, for ``make test-long``.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hiredis import pack_command

import headwater
from headwater.cli.verify.drive import RETRYING, STREAM, Job, Notes, drain
from headwater.log import writing
from headwater.log.handles import StreamHandle
from headwater.store.call import Call
from headwater.store.library import encode_for_server
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault
SEED = int(os.environ.get("HEADWATER_SEED") or secrets.randbits(32))
LONG = int(os.environ.get("HEADWATER_LONG") or 1)


@pytest.mark.timeout(300 + 120 * LONG)
@pytest.mark.parametrize(
    ("writers", "members", "kills"),
    [(3, 3, 8), (2, 4, 5), pytest.param(8, 8, 0, marks=pytest.mark.long)],
    ids=["all are killed", "many members", "nobody is killed"],
)
def test_every_rule_holds(writers: int, members: int, kills: int) -> None:
    seconds = 3 * LONG
    words = {
        "--seconds": seconds,
        "--writers": writers,
        "--members": members,
        "--kills": kills * LONG,
        "--seed": SEED,
    }
    command = [str(word) for pair in words.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-c", "from headwater.cli.main import app; app()", "verify", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing twice" in done.stdout


def test_a_drain_continues_when_the_last_kill_was_of_the_server(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with (
        Server(fsync="always") as server,
        headwater.connect(server.url) as hw,
        closing(Notes(tmp_path / "drain.notes")) as notes,
    ):
        hw.stream(STREAM).write_many([("t", b"v")] * 700)
        hw.stream(STREAM).group(RETRYING).read(1, ack_ms=1)
        with server.client() as raw:
            raw.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
            job = Job("drain", 0, server.url, tmp_path / "drain.notes", SEED, 0, ack_ms=1)
            drained = pool.submit(drain, hw, job, notes)
            until(lambda: any("b" in client["flags"] for client in raw.client_list()))
            server.kill()
        server.restart()
        assert drained.result()
        assert hw.stream(STREAM).group(RETRYING).info().lag == 0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


@pytest.mark.parametrize("size", [1, 5, 100, 3000])
def test_a_batch_of_which_a_part_was_sent_is_not_there_at_all(
    size: int, server: Server, name: str
) -> None:
    with headwater.connect(server.url) as hw:
        stream = hw.stream(name)
        stream.write("t", b"before")
        entries = [(f"t{i}", random.Random(i).randbytes(50)) for i in range(size)]
        call = writing.write_many(StreamHandle(name, set()), entries, None, None, None).send(None)
        assert isinstance(call, Call)
        packed = pack_command(encode_for_server(call))
        cuts = {1, len(packed) // 2, len(packed) - 2, len(packed) - 1}
        for cut in sorted(cuts):
            with closing(socket.create_connection(("127.0.0.1", server.port))) as writer:
                writer.sendall(packed[:cut])
                writer.shutdown(socket.SHUT_WR)  # its process is gone
                with suppress(ConnectionError):
                    assert writer.recv(1) == b""
            assert stream.info().last == 1
        with closing(socket.create_connection(("127.0.0.1", server.port))) as writer:
            writer.sendall(packed)
            assert writer.recv(1) == b"*", "sent whole, it counts"
        assert stream.info().last == 1 + size
