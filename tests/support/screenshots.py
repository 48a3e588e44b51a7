"""``make screenshots``: pictures of the console for the pages, and of every page for eyes.

``python -m tests.support.screenshots`` fills a private store, opens each page of the console and
writes the pictures that the documentation shows into docs/assets/console/; with a folder as
argument, every page in light and dark, wide and on a phone goes there instead.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

import headwater
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from headwater.store import embedded
from tests.support.api import ApiServer
from tests.support.browser import PHONE, Tab, open_browser
from tests.support.console import path_of
from tests.support.showcase import Showcase

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

ASSETS = Path(__file__).parents[2] / "docs" / "assets" / "console"
WIDE: ViewportSize = {"width": 1280, "height": 800}
# What the documentation shows: the name of a picture, a page, a theme, and a window.
SHOWN: tuple[tuple[str, str, str, ViewportSize], ...] = (
    ("overview", "", "light", WIDE),
    ("stream", "/streams/{stream}", "light", WIDE),
    ("group-dark", "/streams/{stream}/groups/{group}", "dark", WIDE),
    ("phone", "/streams/{stream}", "light", PHONE),
)
_COLOURS = 128


def picture(page: Page, path: Path, *, whole: bool) -> None:
    """Write a picture of a page, with few enough colours to be small."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=whole)))
    kept = Image.Quantize.MAXCOVERAGE  # also the colours of which there is little
    few = shot.convert("RGB").quantize(_COLOURS, kept, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    few.save(path, optimize=True)


def main(folder: Path | None) -> None:
    """Fill a store, and take the pictures."""
    home = Path(tempfile.mkdtemp(prefix="hw-screenshots-"))
    # Pages show where the store is: the same whoever takes the pictures.
    os.chdir(home)
    url = "embedded://.headwater"
    try:
        with (
            headwater.connect(url) as hw,
            Showcase(hw, home) as shown,
            ApiServer(url, front=Console, db=shown.database_url) as api,
            open_browser() as browser,
        ):
            for theme in ("light", "dark"):
                tab = Tab(browser, f"http://127.0.0.1:{api.port}", color_scheme=theme)
                if folder is None:
                    take_shown(tab, shown, theme)
                else:
                    take_all(tab, shown, theme, folder)
                tab.close()
    finally:
        embedded.discard(home / ".headwater")
        shutil.rmtree(home, ignore_errors=True)


def take_shown(tab: Tab, shown: Showcase, theme: str) -> None:
    """Take the pictures of the documentation that have this theme."""
    for name, path, wanted, size in SHOWN:
        if wanted == theme:
            tab.page.set_viewport_size(size)
            tab.open(path_of(path, shown))
            picture(tab.page, ASSETS / f"{name}.png", whole=False)


def take_all(tab: Tab, shown: Showcase, theme: str, folder: Path) -> None:
    """Take a picture of every page, wide and on a phone."""
    for page in PAGES:
        name = page.show.__name__.removeprefix("show_")
        tab.open(path_of(page.path, shown))
        for kind, size in (("wide", WIDE), ("phone", PHONE)):
            tab.page.set_viewport_size(size)
            picture(tab.page, folder / f"{name}-{theme}-{kind}.png", whole=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
