"""How an action of the console is spelled elsewhere: as a request, a command and Python.

All three come from the operation's declaration, so they cannot differ from what the doors take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from headwater.doors.catalogue import Kind
from headwater.serve.console.actions.action import Action, cli_words
from headwater.serve.http.messages import path_part


def action(
    kind: Kind,
    verb: str,
    names: Sequence[str],
    given: Mapping[str, Any] | None = None,
    **shown: Any,
) -> Action:
    """Return the action that does an operation; ``shown`` is what only the console says of it."""
    operation = next(one for one in kind.operations(asyncio=True) if one.verb == verb)
    given = dict(given or {})
    row = operation.row
    method, _, end = (row.http or f"POST {verb}").partition(" ")
    path = kind.path
    for key, name in zip(kind.keys, names, strict=True):
        path = path.replace(f"{{{key}}}", path_part(name))
    path += end and f"/{end}"
    in_query = method in ("GET", "DELETE")
    if in_query and given:
        path += f"?{urlencode(given)}"
    words: list[object] = [kind.command, row.command or verb.replace("_", "-"), *names]
    for parameter in operation.parameters:
        if parameter.called not in given:
            continue
        value = given[parameter.called]
        if parameter.keyword or not parameter.required:
            words += [f"--{parameter.called.replace('_', '-')}", value]
        else:
            words += value if isinstance(value, list) else [value]
    if row.asks:
        words.append("--yes")
    target = kind.open(_Spelled("hw"), *names)
    arguments = [
        f"{parameter.name}={value!r}" if parameter.keyword else repr(value)
        for parameter in operation.parameters
        if (value := given.get(parameter.called)) is not None
    ]
    return Action(
        scope=row.scope,
        name=names[0],
        method=method,
        path=path,
        body=given if given and not in_query else None,
        cli=cli_words(*words),
        python=f"{target}.{verb}({', '.join(arguments)})",
        **shown,
    )


class _Spelled:
    """Spells what is called on it, as a program would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return lambda *given: _Spelled(f"{self._text}.{name}({', '.join(map(repr, given))})")

    def __str__(self) -> str:
        return self._text
