"""Clients of other makers work unchanged; they come from their registries, so only in long runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.resp import RespServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

NODE = """
import { createClient } from "redis";
import Redis from "ioredis";
const [port, name] = process.argv.slice(2);
const one = createClient({ url: `redis://127.0.0.1:${port}` });
one.on("error", (error) => { throw error; });
await one.connect();
const found = [await one.sendCommand(["TWRITE", name, "t", "a"])];
const two = new Redis({ port: Number(port) });
const pipeline = two.pipeline();
pipeline.call("TWRITE", name, "t", "b");
pipeline.call("TREAD", name, "1", "10");
for (const [error, value] of await pipeline.exec()) {
  if (error) throw error;
  found.push(value);
}
const blocked = one.sendCommand(["TREAD", name, "3", "10", "BLOCK", "0"]);
await two.call("TWRITE", name, "t", "c");
found.push(await blocked);
found.push(await one.sendCommand(["TPCREATE", name, "1"]));
found.push(await two.call("TPWRITE", name, "t", "d"));
found.push(await one.sendCommand(["TPREAD", name, "g", "9"]));
found.push(await two.call("CHRESERVE", name, "me", "9"));
found.push(await one.sendCommand(["CHSTATS", name + "-none"]));
console.log(JSON.stringify(found));
await one.close();
await two.quit();
"""
GLIDE = """
import asyncio, sys
from glide import GlideClient, GlideClientConfiguration, NodeAddress, ProtocolVersion

async def main(port, name):
    for number, protocol in enumerate((ProtocolVersion.RESP2, ProtocolVersion.RESP3), 1):
        where = [NodeAddress("127.0.0.1", port)]
        client = await GlideClient.create(GlideClientConfiguration(where, protocol=protocol))
        assert await client.custom_command(["TWRITE", name, "t", "v"]) == number
        read = await client.custom_command(["TREAD", name, str(number), "10"])
        assert read == [[number, b"t", b"v"]], read
        topic = f"{name}-{number}"
        assert await client.custom_command(["TPCREATE", topic, "1"]) == 1
        assert await client.custom_command(["TPWRITE", topic, "t", "v"]) == [0, 1]
        assert await client.custom_command(["CHADD", topic, "2", "m"]) == [1, 0]
        lease, until_ms, rows = await client.custom_command(["CHRESERVE", topic, "me", "9"])
        assert await client.custom_command(["CHCOMMIT", topic, lease, rows[0][2], "m"]) == 1
        await client.close()

asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.skipif(not shutil.which("npm"), reason="there is no npm")
def test_node_redis_and_ioredis(door: RespServer, name: str, tmp_path: Path) -> None:
    install = ["npm", "install", "--no-audit", "--no-fund", "redis", "ioredis"]
    (tmp_path / "package.json").write_text("{}")
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "try.mjs").write_text(NODE)
    words = ["node", "try.mjs", str(door.port), name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    streams = [1, 2, [[1, "t", "a"], [2, "t", "b"]], [[3, "t", "c"]]]
    assert json.loads(done.stdout) == [*streams, 1, [0, 1], [[0, 1, "t", "d"]], None, None]


def test_valkey_glide(door: RespServer, name: str, tmp_path: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "--target", str(tmp_path), "valkey-glide"]
    subprocess.run(install, check=True, capture_output=True)
    (tmp_path / "try_glide.py").write_text(GLIDE)
    words = [sys.executable, "try_glide.py", str(door.port), name]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
