"""A server on which any ``redis.call`` of any function can be made to fail.

Server functions do not roll back: what a function has changed before one of its calls fails stays
changed. Here every call in the source of the library has a number, its *site*. A test runs an
operation once and sees which sites it passes; then it runs the operation again and again, each
time on something fresh and with another call failing, and checks afterwards that a client which
meets no failure can go on and finds everything in order:

    with FailingServer() as server:
        failed = server.fail_in_turn(prepare, operate, check)
        assert not server.sites("queue") - failed

A call fails in one of two ways: *once*, as a damaged value would make it fail, or together with
every later call of the same command, as a right that was taken away would.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self, TypeVar

import pytest

import headwater
from headwater.errors import HeadwaterError
from headwater.store.library import FORMAT, library
from tests.support.servers import Server

T = TypeVar("T")

_CALL = re.compile(r"redis\.(p?)call\(\s*'([A-Z]+)'")
_FILE = re.compile(r"^-- (\w+)/(\S+\.lua)$", re.MULTILINE)
_DENIED = "NOPERM ACL failure in script: denied by the test"
# One local name, because those of a package are many and Lua allows 200.
_PRELUDE = f"""
local failing = {{ at = 0, seen = 0 }}
function failing.site(site, command)
  if not failing.trace then return false end
  failing.seen = failing.seen + 1
  failing.trace[failing.seen] = site
  if failing.seen == failing.at and failing.lasts then failing.command = command end
  return failing.seen == failing.at or failing.command == command
end
function failing.call(site, command, ...)
  if failing.site(site, command) then error({{ err = '{_DENIED}' }}) end
  return redis.call(command, ...)
end
function failing.pcall(site, command, ...)
  if failing.site(site, command) then return {{ err = '{_DENIED}' }} end
  return redis.pcall(command, ...)
end
redis.register_function('failing_arm', function(_, args)
  failing.at, failing.lasts, failing.command = tonumber(args[1]), args[2] == 'lasting', nil
  failing.seen, failing.trace = 0, {{}}
end)
redis.register_function('failing_disarm', function()
  local trace = failing.trace
  failing.trace = nil
  return trace
end)
"""


class Site(NamedTuple):
    """A place in the source of the library where a command is called."""

    package: str
    file: str
    line: int
    column: int
    command: str

    def __str__(self) -> str:
        return f"{self.package}/{self.file}:{self.line} {self.command}"


class Failure(NamedTuple):
    """The call that is to fail: which one of an operation's, counted from 1, and for how long."""

    at: int
    lasting: bool


def _numbered(source: str) -> tuple[str, list[Site]]:
    """Return the source with a number at each call, and the sites by their numbers."""
    first, _, body = source.partition("\n")
    files = list(_FILE.finditer(body))
    sites: list[Site] = []

    def number(call: re.Match[str]) -> str:
        file = max((file for file in files if file.start() < call.start()), key=re.Match.start)
        line = body.count("\n", file.end(), call.start())
        column = call.start() - body.rindex("\n", 0, call.start())
        sites.append(Site(file[1], file[2], line, column, call[2]))
        return f"failing.{call[1]}call({len(sites) - 1}, '{call[2]}'"

    return f"{first}{_PRELUDE}" + _CALL.sub(number, body), sites


def _failures(places: list[int], forgetting: bool) -> set[Failure]:
    """Choose which passings of a site fail, and how."""
    if "HEADWATER_LONG" in os.environ:
        found = {Failure(at, way) for at in (*places[:2], places[-1]) for way in (False, True)}
    elif len(places) > 1 or forgetting:
        found = {Failure(places[0], lasting=False), Failure(places[-1], lasting=True)}
    else:
        # Operations pass a site at different places, so that both ways are tried among them.
        found = {Failure(places[0], lasting=places[0] % 2 == 0)}
    return {each for each in found if each.lasting or not forgetting}


class FailingServer:
    """A server whose functions fail where a test says, and a client of it."""

    def __init__(self) -> None:
        self._source, self._sites = _numbered(library(FORMAT).source)
        self.server = Server()
        self._admin = self.server.client()
        self.forget()
        self.hw = headwater.connect(self.server.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self.hw.close()
        self.server.close()

    def forget(self) -> None:
        """Load the library anew: what it keeps in memory is lost, as by a restart."""
        self._admin.function_load(self._source, replace=True)

    def sites(self, *packages: str, files: str = "") -> set[Site]:
        """Return the sites of packages, or of all; ``files`` is a pattern of file names."""
        return {
            site
            for site in self._sites
            if (not packages or site.package in packages) and re.search(files, site.file)
        }

    @contextmanager
    def armed(self, failure: Failure | None) -> Iterator[list[Site]]:
        """Let a call fail while the block runs; the list then has the sites that were passed."""
        at, lasting = failure or (0, False)
        passed: list[Site] = []
        self._admin.fcall("failing_arm", 0, str(at), "lasting" if lasting else "once")
        try:
            yield passed
        finally:
            trace = self._admin.fcall("failing_disarm", 0)
            passed += [self._sites[number] for number in trace or ()]

    def fail_in_turn(
        self,
        prepare: Callable[[], T],
        operate: Callable[[T], object],
        check: Callable[[T, Failure], object],
        *,
        forgetting: bool = False,
    ) -> set[Site]:
        """Run an operation with each of its calls failing in turn; returns the sites that failed.

        ``prepare`` makes something fresh, ``operate`` runs on it and may raise a HeadwaterError,
        and ``check`` looks at it afterwards, when nothing fails any more. Of a site that is passed
        many times the first passing fails once and the last one lastingly; one that is passed once
        fails in one of the ways. The long run lets the first, the second and the last passing fail
        in both ways. With ``forgetting`` a command is denied from then on, and the library forgets
        what it has in memory before ``check``.
        """
        fresh = prepare()
        with self.armed(None) as passed:
            operate(fresh)
        places: dict[Site, list[int]] = {}
        for place, site in enumerate(passed, 1):
            places.setdefault(site, []).append(place)
        failed: set[Site] = set()
        for failure in sorted(
            {each for at in places.values() for each in _failures(at, forgetting)}
        ):
            target = prepare()
            with self.armed(failure) as passed_now:
                try:
                    operate(target)
                except HeadwaterError as error:
                    said = str(error)
                else:
                    said = "no error"
            if len(passed_now) < failure.at:
                continue
            site = passed_now[failure.at - 1]
            if forgetting:
                self.forget()
            try:
                check(target, failure)
            except Exception as error:
                how = "from then on" if failure.lasting else "once"
                error.add_note(f"after call {failure.at} failed {how}, at {site} ({said})")
                raise
            failed.add(site)
        return failed


def stopped(
    failing: FailingServer, prepare: Callable[[], T], operate: Callable[[T], object], place: str
) -> T:
    """Return something whose operation stopped at the last call of a site, "file command"."""
    fresh = prepare()
    with failing.armed(None) as passed:
        operate(fresh)
    names = [f"{site.file} {site.command}" for site in passed]
    at = len(names) - names[::-1].index(place)
    fresh = prepare()
    with failing.armed(Failure(at, lasting=False)), pytest.raises(HeadwaterError):
        operate(fresh)
    return fresh
