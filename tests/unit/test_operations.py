"""Operations reach for nothing but what they ask of their store: no clock, no chance, no I/O."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater

SOURCE = Path(headwater.__file__).parent
# By these a module would reach around its store.
OUTSIDE = {
    *("asyncio", "concurrent", "multiprocessing", "os", "pathlib", "queue", "random", "secrets"),
    *("select", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "redis"),
}
MODULES = sorted(
    [file for part in ("log", "queue", "ick") for file in (SOURCE / part).glob("*.py")]
    + [SOURCE / "store" / f"{name}.py" for name in ("call", "many")]
    + [SOURCE / "outbox" / f"{name}.py" for name in ("consuming", "position", "reset")]
)


def reached(module: Path) -> Iterator[str]:
    """Return what a module imports from outside, and the clocks that it reads."""
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Attribute) and node.attr in ("now", "utcnow", "today"):
            yield "time"


@pytest.mark.parametrize("module", MODULES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_an_operation_asks_its_store_for_time_chance_and_data(module: Path) -> None:
    assert not OUTSIDE & set(reached(module))
