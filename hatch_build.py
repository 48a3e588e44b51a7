"""What a package index shows: README.md, without links that would lead nowhere there.

Links to files of the repository lead to $DOCS_REPOSITORY, as `make docs` takes it from the clone;
without that address only their text stays. A picture goes with its link.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")


class ReadmeForAnIndex(MetadataHookInterface):
    """Makes the readme of the metadata out of README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_an_index(text, os.environ.get("DOCS_REPOSITORY", "")),
        }


def for_an_index(text: str, repository: str) -> str:
    """Return a page whose links to files lead to a repository; without one, their text alone."""

    def link(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return _RELATIVE.sub(link, text)
