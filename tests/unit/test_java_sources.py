"""Our Java holds on to Spark in one place only, and reads the nodes that our Python writes."""

from __future__ import annotations

import re

import pytest

from headwater.errors import UnreadableNode
from headwater.kernel.headers import Headers
from headwater.log import node
from headwater.spark.engine.optimizer_rule import java_sources

REFLECTION = re.compile(r"java\.lang\.reflect|forName|getDeclared\w+|setAccessible|\.getMethod")


def test_nothing_but_internals_uses_reflection() -> None:
    users = {name for name, text in java_sources().items() if REFLECTION.search(text)}
    assert users == {"Internals.java"}


@pytest.fixture(scope="module")
def constants() -> dict[str, int]:
    """The constants of the reader in Java."""
    found = re.findall(r"static final int (\w+) = (\d+);", java_sources()["Nodes.java"])
    return {name: int(value) for name, value in found}


def test_both_readers_of_nodes_know_the_same_version_and_columns(
    constants: dict[str, int],
) -> None:
    for name in ("VERSION", "HAS_TIME", "HAS_OFFSET", "HAS_HEADERS", "ZSTD", "LZ4"):
        assert constants[name] == getattr(node, name), name


@pytest.mark.parametrize("headers", [b"", Headers({"a": "b"}).encoded], ids=["", "headers"])
@pytest.mark.parametrize("rows", [1, 1000], ids=["plain", "packed"])
def test_both_readers_of_nodes_know_the_same_header(
    constants: dict[str, int], rows: int, headers: bytes
) -> None:
    columns = node.HAS_TIME | (node.HAS_HEADERS if headers else 0)
    batch = node.batch_of(["tag"] * rows, [b"value"] * rows, [7] * rows, headers=[headers] * rows)
    packed = node.pack(batch)
    blob = packed.blob

    def number(at: int) -> int:
        return int.from_bytes(blob[at : at + 4], "little")

    assert blob[:2] == b"HW"
    assert "MAGIC = 'H' | 'W' << 8;" in java_sources()["Nodes.java"]
    # What older clients can read is written as they read it.
    assert blob[constants["VERSION_AT"]] == (node.VERSION if headers else 1)
    assert blob[constants["COLUMNS_AT"]] == columns | (node.ZSTD if rows > 1 else 0)
    assert number(constants["ROWS_AT"]) == rows
    assert number(constants["SIZE_AT"]) == packed.raw_bytes
    body = blob[constants["HEADER"] :]
    assert len(body) == packed.raw_bytes if rows == 1 else body[:4] == b"\x28\xb5\x2f\xfd"


def test_both_readers_of_nodes_raise_the_same_error() -> None:
    text = java_sources()["Nodes.java"]
    begin = text.index("RuntimeException unreadable(String why)")
    words = "".join(re.findall(r'"([^"]*)"', text[begin : text.index("}", begin)]))
    error = UnreadableNode("")
    assert words == f"{type(error).__module__}.{type(error).__name__}: {error}"
