"""Tabs of a real Chromium, which note whatever should not happen in a page."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import NotFetched, chromiums

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request, Response, ViewportSize

PHONE: ViewportSize = {"width": 390, "height": 844}
WIDE: ViewportSize = {"width": 1280, "height": 900}
# For whatever a page is waited for: a browser is many processes, and a busy machine runs few.
PATIENCE_MS = 120_000


@contextlib.contextmanager
def open_browser(*switches: str) -> Iterator[Browser]:
    """Start a Chromium; skips the test, with the reason, where none can be had."""
    pytest.importorskip("playwright", reason="playwright is not installed")
    from playwright.sync_api import Error, sync_playwright

    reasons = []
    with sync_playwright() as playwright:
        try:
            for one in chromiums():
                try:
                    browser = playwright.chromium.launch(
                        executable_path=one.program,
                        args=switches,
                        env={**os.environ, **one.environment},
                        timeout=PATIENCE_MS,
                    )
                except Error as error:
                    reasons.append(f"{one.program} does not start: {error.message.splitlines()[0]}")
                    continue
                with contextlib.closing(browser):
                    yield browser
                return
        except NotFetched as error:
            reasons.append(str(error))
    pytest.skip(f"no Chromium: {'; '.join(reasons)}")


class Tab:
    """A tab of a session of its own, on one server.

    ``faults`` are errors of scripts, what the content security policy refused, requests to
    elsewhere and dialogs, which only code that somebody smuggled in opens.
    """

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.faults: list[str] = []
        self._context = browser.new_context(**{"viewport": WIDE, "locale": "en-GB", **options})
        self._context.set_default_timeout(PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", lambda said: self._note(said.type == "error", said.text))
        self.page.on("pageerror", lambda error: self._note(True, str(error)))
        self.page.on("request", self._check)
        self.page.on("dialog", self._dismiss)

    def _note(self, bad: bool, text: str) -> None:
        if bad:
            self.faults.append(text)

    def _dismiss(self, dialog: Dialog) -> None:
        self.faults.append("a dialog")
        dialog.dismiss()

    def _check(self, request: Request) -> None:
        foreign = not request.url.startswith((self.address, "data:"))
        self._note(foreign, f"asked for {request.url}")

    def open(self, path: str) -> Response:
        """Open a page of the server."""
        answer = self.page.goto(self.address + path)
        assert answer is not None
        return answer

    def close(self) -> None:
        """Close the tab and forget its session."""
        self._context.close()


def serious_faults(page: Page, *rules: str) -> list[str]:
    """Return what axe finds that keeps people from using a page, by all its rules or by some."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = list(rules)
    # All rows of a table come from one template: the first few have all of its faults.
    seen = {"exclude": [["tbody tr:nth-child(n+5)"]]}
    found = page.evaluate("([seen, options]) => axe.run(seen, options)", [seen, options])
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:3]
    ]


def overflow(page: Page) -> int:
    """Return by how many pixels a page is wider than its window."""
    wider: int = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return wider
