"""What the console takes from others is as it was published, and nothing else is sent."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.resources import files

STATIC = files("headwater.serve.console").joinpath("static")
OWN = {"console.css", "console.js", "mark.svg"}


def test_vendored_files_have_their_digests() -> None:
    vendored = tomllib.loads(STATIC.joinpath("VENDORED.toml").read_text())
    found = {one["file"]: one for one in vendored.values()}
    assert {file.name for file in STATIC.iterdir()} == {*found, *OWN, "VENDORED.toml"}
    for name, one in found.items():
        assert hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest() == one["sha256"]
        assert one["version"]
        assert one["licence"]


def test_pages_ask_nobody_else() -> None:
    for folder in ("static", "templates"):
        for file in files("headwater.serve.console").joinpath(folder).iterdir():
            if file.name not in ("htmx.min.js", "VENDORED.toml", "mark.svg"):
                assert not re.search(r"https?://|//\w+\.\w", file.read_text()), file.name
