"""``make screenshots``: pictures of the console for the pages, and of every page for eyes.

``python -m tests.support.screenshots`` fills a private store, opens each page of the console,
writes pictures into docs/assets/console/ and the page that shows them; with a folder as argument,
every page in light and dark, wide and on a phone, goes there instead.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

import headwater
from headwater.serve.console.calls import ConsolePage
from headwater.serve.console.pages.table import PAGES
from headwater.serve.console.service import Console
from headwater.store import embedded
from tests.support.api import ApiServer
from tests.support.browser import PHONE, Tab, open_browser
from tests.support.console import path_of
from tests.support.showcase import Showcase

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets" / "console"
LIST = ROOT / "docs" / "reference" / "console.md"
WIDE: ViewportSize = {"width": 1200, "height": 760}
# The overview has its charts further down.
_TALL = {"overview": 1120}
# Which pages are shown in the dark, too, and which on a phone.
DARK = ("overview", "stream", "group")
NARROW = ("overview", "stream", "dead")
_COLOURS = 128
_HEAD = """# The console, page by page

Written by `make screenshots`: every page of [the console](../how-to/console.md), its address, and
a picture of it. A word in braces stands for a name, or for an offset. The store in the
pictures is an example, and so are the figures of its charts.
"""


def picture(page: Page, path: Path, *, whole: bool) -> None:
    """Write a picture of a page, with few enough colours to be small."""
    shot = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB")
    # The colours that are there most often, as they are: averages would tint the page. A grey is
    # the edge of a letter, and there are many; a few pixels of green may be a light.
    counted: Any = shot.getcolors(shot.width * shot.height)
    weighed = sorted(counted, key=lambda one: -one[0] * (8 + max(one[1]) - min(one[1])))
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in weighed[:_COLOURS] for part in colour])
    few = shot.quantize(palette=palette, dither=Image.Dither.NONE)
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
            ApiServer(url, front=Console, db=shown.database_url, farm=shown.farm) as api,
            open_browser() as browser,
        ):
            shown.act(api.client())
            for theme in ("light", "dark"):
                tab = Tab(browser, f"http://127.0.0.1:{api.port}", color_scheme=theme)
                # The header says what the store survives once it has been examined.
                tab.open("/console")
                tab.page.wait_for_selector("#verdict a")
                if folder is None:
                    take_shown(tab, shown, theme)
                else:
                    take_all(tab, shown, theme, folder)
                tab.close()
            if folder is None:
                write_list()
    finally:
        for place in (".headwater", "east", "west"):
            embedded.discard(home / place)
        shutil.rmtree(home, ignore_errors=True)


def take_shown(tab: Tab, shown: Showcase, theme: str) -> None:
    """Take the pictures of the documentation that have this theme."""
    for page, name in named_pages():
        if theme == "light" or name in DARK:
            height = _TALL.get(name, WIDE["height"])
            tab.page.set_viewport_size({"width": WIDE["width"], "height": height})
            tab.open(path_of(page.path, shown))
            end = "" if theme == "light" else "-dark"
            picture(tab.page, ASSETS / f"{name}{end}.png", whole=False)
        if theme == "light" and name in NARROW:
            tab.page.set_viewport_size(PHONE)
            picture(tab.page, ASSETS / f"{name}-phone.png", whole=False)


def named_pages() -> Iterator[tuple[ConsolePage, str]]:
    """Yield every page, and how its pictures are called."""
    for page in PAGES:
        if page.template:
            yield page, page.show.__name__.removeprefix("show_").replace("_", "-")


def write_list() -> None:
    """Write the page that shows them all."""
    parts = [_HEAD]
    for page, name in named_pages():
        what = " ".join((page.show.__doc__ or "").split("\n\n")[0].split())
        what = what.replace("Show ", "Shows ", 1)
        parts.append(f"## /console{page.path}\n\n{what}\n")
        parts.append(f"![{what.rstrip('.')}](../assets/console/{name}.png)\n")
    LIST.write_text("\n".join(parts))


def take_all(tab: Tab, shown: Showcase, theme: str, folder: Path) -> None:
    """Take a picture of every page, wide and on a phone."""
    for page, name in named_pages():
        tab.open(path_of(page.path, shown))
        for kind, size in (("wide", WIDE), ("phone", PHONE)):
            tab.page.set_viewport_size(size)
            picture(tab.page, folder / f"{name}-{theme}-{kind}.png", whole=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else None)
