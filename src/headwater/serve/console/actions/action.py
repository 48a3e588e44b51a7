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
from headwater.serve.console.calls import PageCall
from headwater.serve.tokens import Scope


class Action(NamedTuple):
    """A change that is ready to be made.

    ``bill`` are sentences that say what it will do, with counts. ``name`` is the object that the
    scope is needed on; ``back`` the page from which it was asked for.
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

    @property
    def agreement(self) -> str:
        """What a button agrees to: the request, and nothing else, however the store has changed."""
        asked = json.dumps([self.method, self.path, self.body], sort_keys=True)
        return sha256(asked.encode()).hexdigest()[:16]

    def curl(self, address: str) -> str:
        """Return the same as a request of HTTP to a server."""
        words = ["curl", "-X", self.method]
        if self.body is not None:
            words += ["-H", "content-type: application/json", "-d", json.dumps(self.body)]
        words.append(f"{address}{self.path}")
        return shlex.join(words)


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


def place_of(text: str) -> int | str:
    """Return an offset as it was typed, or ``first`` or ``last``; raises InvalidInput."""
    text = text.replace(",", "").strip()
    if text in ("first", "last"):
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no offset; give a number, first or last") from None
