"""What the console takes from others is as it was published, and nothing else is sent."""

from __future__ import annotations

import hashlib
import re
import tomllib
from importlib.resources import files

STATIC = files("headwater.serve.console").joinpath("static")
OWN = {"console.css", "console.js", "charts.js", "language.js", "stream.js", "mark.svg"}


def test_vendored_files_have_their_digests() -> None:
    vendored = tomllib.loads(STATIC.joinpath("VENDORED.toml").read_text())
    found = {one["file"]: one for one in vendored.values()}
    assert {file.name for file in STATIC.iterdir()} == {*found, *OWN, "VENDORED.toml"}
    for name, one in found.items():
        assert hashlib.sha256(STATIC.joinpath(name).read_bytes()).hexdigest() == one["sha256"]
        assert one["version"]
        assert one["licence"]


def test_pages_ask_nobody_else() -> None:
    for template in files("headwater.serve.console").joinpath("templates").iterdir():
        for target in re.findall(r'\b(?:href|src|action)="([^"]*)', template.read_text()):
            assert re.match(r"#|\{\{ (root|api|here|back|link|own) \}\}", target), (
                template.name,
                target,
            )
    for name in OWN - {"mark.svg"}:
        assert not re.search(
            r"https?:|url\(|@import|import\(", STATIC.joinpath(name).read_text()
        ), name
