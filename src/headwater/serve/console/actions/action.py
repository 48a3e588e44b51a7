"""Actions: what the console can change, each as one request of the API.

An action says exactly what it will do before it is asked for, shows the same as a command, as a
request of HTTP and as Python, and is made by the route of the API: with its scopes and its audit.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.console.calls import PageCall


class Action(NamedTuple):
    """A change that is ready to be made.

    ``bill`` are sentences that say what it will do, with counts. ``name`` is the object that the
    scope is needed on; ``back`` the page from which it was asked for. ``counts`` are the numbers of
    the bill that matter: how much would be changed. ``cli`` is a line for a shell, ``python`` one
    for a program that has ``hw``, and with ``sql`` also ``engine``, a database. ``pinned`` are
    fields of the form as the bill understood them: steps and spans mean something else a second
    later. ``is_job``: a server does it in the background, and it is not done when it is accepted.
    """

    title: str
    scope: Scope
    name: str
    bill: list[str]
    method: str
    path: str
    body: dict[str, Any] | None
    cli: str
    python: str
    back: str
    careful: bool = False
    counts: tuple[int, ...] = ()
    sql: bool = False
    pinned: tuple[tuple[str, str], ...] = ()
    is_job: bool = False

    @property
    def agreement(self) -> str:
        """What a button agrees to: the request, and how much it was said to change."""
        asked = json.dumps([self.method, self.path, self.body], sort_keys=True)
        return ".".join([sha256(asked.encode()).hexdigest()[:16], *map(str, self.counts)])

    def is_agreed(self, agreed: str) -> bool:
        """Return whether what was agreed to is still what would happen.

        A count may differ by a tenth, and by a hundred where nothing is lost by it: traffic goes on
        while somebody reads a bill.
        """
        request, *before = agreed.split(".")
        now, *_ = self.agreement.split(".")
        if request != now or len(before) != len(self.counts):
            return False
        least = 0 if self.careful else 100
        return all(
            old.isdecimal() and abs(new - int(old[:20])) <= max(int(old[:20]) // 10, least)
            for old, new in zip(before, self.counts, strict=True)
        )

    def curl(self, address: str, *, token: bool) -> str:
        """Return the same as a request of HTTP to a server, which asks for a token or not."""
        words = ["curl", "-X", self.method]
        if self.body is not None:
            words += ["-H", "content-type: application/json", "-d", json.dumps(self.body)]
        words.append(f"{address}{self.path}")
        # The shell is to put the token in: it is quoted by other marks than the rest.
        sent = ' -H "authorization: Bearer $HEADWATER_TOKEN"' if token else ""
        return shlex.join(words) + sent

    @property
    def program(self) -> str:
        """The same as a program of Python."""
        lines = ["import headwater"]
        if self.sql:
            lines = ["import os", "", *lines, "import sqlalchemy", ""]
            lines += ["from headwater.outbox import Consumer"]
        lines += ["", "hw = headwater.connect()"]
        if self.sql:
            lines += ['engine = sqlalchemy.create_engine(os.environ["HEADWATER_DB"])']
        return "\n".join([*lines, self.python])


Prepare: TypeAlias = Callable[[PageCall], Awaitable[Action]]


def given(call: PageCall, name: str) -> str:
    """Return a field of the form; raises InvalidInput without it."""
    found = call.query.get(name, "")
    if not found:
        raise InvalidInput(f"this action needs {name}; use a button of the console")
    return found


def cli_words(*words: object) -> str:
    """Return a command of ``headwater`` as a shell takes it."""
    return shlex.join(["headwater", *map(str, words)])


def offset_of(call: PageCall, name: str) -> int:
    """Return an offset of the form; raises InvalidInput without it, and for anything else."""
    given(call, name)
    return call.number(name) or 0
