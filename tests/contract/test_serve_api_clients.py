"""Clients are generated from the OpenAPI document: it has nothing in it that generators refuse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.serve.api.routes import document
from headwater.serve.api.table import ROUTES

PYTHON = "openapi-python-client==0.29.1"
TYPESCRIPT = "openapi-typescript@7.13.0"


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object of a document, with where it is."""
    if isinstance(node, dict):
        yield path, node
        for name, one in node.items():
            yield from nodes(one, f"{path}/{name}")
    elif isinstance(node, list):
        for at, one in enumerate(node):
            yield from nodes(one, f"{path}/{at}")


def test_a_list_says_what_it_holds_by_one_schema() -> None:
    """openapi-python-client refuses the whole document for one pair, whose items are ``false``."""
    told = json.loads(document(ROUTES))
    lists = {path: node for path, node in nodes(told) if node.get("type") == "array"}
    assert lists
    for path, node in lists.items():
        assert isinstance(node["items"], dict), path
        assert "prefixItems" not in node, path


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_in_python_is_generated(tmp_path: Path) -> None:
    tool, told, made = tmp_path / "tool", tmp_path / "openapi.json", tmp_path / "made"
    told.write_bytes(document(ROUTES))
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tool), PYTHON]
    if subprocess.run(install, capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} cannot be fetched")
    words = ["generate", "--path", str(told), "--output-path", str(made), "--meta", "none"]
    code = "from openapi_python_client.cli import app; app()"
    run([sys.executable, "-c", code, *words], PYTHONPATH=str(tool), PATH=str(tool / "bin"))
    calls = {file.stem for file in made.glob("api/*/*.py")}
    assert calls >= {route.operation for route in ROUTES}
    run([sys.executable, "-m", "compileall", "-q", str(made)])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_types_in_typescript_are_generated(tmp_path: Path) -> None:
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("no node on the PATH")
    told, made = tmp_path / "openapi.json", tmp_path / "made.ts"
    told.write_bytes(document(ROUTES))
    run([npx, "--yes", TYPESCRIPT, str(told), "-o", str(made)])
    text = made.read_text()
    assert all(f"{route.operation}: {{" in text for route in ROUTES)


def run(words: list[str], **variables: str) -> None:
    environment = {**os.environ, **variables}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
