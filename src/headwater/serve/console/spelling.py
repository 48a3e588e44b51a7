"""Actions of the console that do one operation: all but the bill comes from its declaration.

The fields of the form, the scope, the title, and how the same is spelled as a request, a command
and Python cannot differ from what the doors take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

from headwater.doors.catalogue import CHANNEL, CONSUMER, GROUP, ICK, QUEUE, STREAM, Declared, Kind
from headwater.kernel.declaring import Spelling
from headwater.kernel.inputs import parse_size, parse_span
from headwater.serve.console.actions.action import Action, Prepare, cli_words, given
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import (
    channel_link,
    consumer_link,
    group_link,
    ick_link,
    queue_link,
    stream_link,
)
from headwater.serve.http.messages import path_part

# The page of an object, and the page on which nothing of it is left.
_LINKS: Final[dict[str, Callable[..., str]]] = {
    GROUP.name: group_link,
    STREAM.name: stream_link,
    QUEUE.name: queue_link,
    CHANNEL.name: channel_link,
    CONSUMER.name: consumer_link,
    ICK.name: ick_link,
}


class Bill(NamedTuple):
    """What an operation will do, in sentences with counts, and what it is asked with.

    ``given`` are values by the names of doors, ``typed`` what a command has for one that was typed
    otherwise, as 7d, ``words`` what it has beside them. What is empty comes from the operation:
    ``verb`` is another one of the same object, ``then`` the page to go to. What loses something is
    ``careful``. ``python`` is the call where a program uses another object, of a database if
    ``sql``.
    """

    said: list[str]
    counts: tuple[int, ...] = ()
    given: Mapping[str, Any] = {}
    typed: Mapping[str, str] = {}
    words: tuple[str, ...] = ()
    title: str = ""
    verb: str = ""
    then: str = ""
    careful: bool | None = None
    pinned: tuple[tuple[str, str], ...] = ()
    python: str = ""
    sql: bool = False


MakeBill: TypeAlias = Callable[..., Awaitable[Bill]]


def does(kind: Kind, verb: str) -> Callable[[MakeBill], Prepare]:
    """Declare what makes the bill of an operation as an action; it takes the object's names."""

    async def prepare(make: MakeBill, call: PageCall) -> Action:
        names = [given(call, key) for key in kind.keys]
        call.check(names[0])
        bill = await make(call, *names)
        return action(kind.operation(bill.verb or verb), names, bill)

    return lambda make: partial(prepare, make)


def form_values(call: PageCall, operation: Declared) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what a form has for the parameters of an operation, and how it was typed.

    Raises InvalidInput.
    """
    values: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for parameter in operation.parameters:
        field = parameter.option.removeprefix("--").replace("-", "_")
        text = call.query.get(field, "").replace(",", "").strip()
        if not text:
            continue
        typed[parameter.called] = text
        if parameter.kind is bool:
            values[parameter.called] = text == "1"
        elif parameter.says.shape is Spelling.SPAN:
            values[parameter.called] = parse_span(text)
        elif parameter.says.shape is Spelling.SIZE:
            values[parameter.called] = parse_size(text)
        else:
            values[parameter.called] = call.number(field)
    return values, typed


def action(operation: Declared, names: Sequence[str], bill: Bill) -> Action:
    """Return the action that does an operation."""
    kind, row, values = operation.kind, operation.row, dict(bill.given)
    method, _, end = (row.http or f"POST {operation.verb}").partition(" ")
    path = kind.path
    for key, name in zip(kind.keys, names, strict=True):
        path = path.replace(f"{{{key}}}", path_part(name))
    path += end and f"/{end}"
    in_query = method in ("GET", "DELETE")
    if in_query and values:
        path += f"?{urlencode(values)}"
    typed = {name: text for name, text in bill.typed.items() if values.get(name) is not True}
    return Action(
        title=bill.title or f"{operation.verb.title()} {' of '.join(reversed(names))}",
        scope=row.scope,
        name=names[0],
        bill=bill.said,
        method=method,
        path=path,
        body=values if operation.parameters and not in_query else None,
        cli=command(operation, names, values | typed, *bill.words),
        python=bill.python or python(operation, names, values),
        back=bill.then or _LINKS[kind.name](*names),
        careful=bool(row.asks) if bill.careful is None else bill.careful,
        counts=bill.counts,
        pinned=bill.pinned,
        sql=bill.sql,
    )


def command(operation: Declared, names: Sequence[str], typed: Mapping[str, Any], *more: str) -> str:
    """Return an operation as a line for a shell; ``more`` words come behind the others."""
    kind, row = operation.kind, operation.row
    name = row.command or operation.verb.replace("_", "-")
    words: list[object] = [*kind.command.split(), name, *names]
    for parameter in operation.parameters:
        if parameter.called not in typed:
            continue
        value = typed[parameter.called]
        if parameter.listed or (parameter.required and not parameter.keyword):
            words += value if isinstance(value, list) else [value]
        else:
            words += [parameter.option] if value is True else [parameter.option, value]
    words += more
    if row.asks and not any(name in typed for name in row.unless):
        words.append("--yes")
    return cli_words(*words)


def python(operation: Declared, names: Sequence[str], given: Mapping[str, Any]) -> str:
    """Return an operation as a line of a program."""
    arguments: list[str] = []
    records: dict[str, list[str]] = {}
    for parameter in operation.parameters:
        if (value := given.get(parameter.called)) is None:
            continue
        named = f"{parameter.name}={value!r}"
        if parameter.of in operation.records and operation.records[parameter.of].optional:
            records.setdefault(parameter.of, []).append(named)
        else:
            arguments.append(named if parameter.keyword else repr(value))
    for name, facts in records.items():
        made = operation.records[name].kind.__name__
        arguments.append(f"{name}=headwater.{made}({', '.join(facts)})")
    target = operation.kind.open(_Spelled("hw"), *names)
    return f"{target}.{operation.verb}({', '.join(arguments)})"


class _Spelled:
    """Spells what is called on it, as a program would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return lambda *given: _Spelled(f"{self._text}.{name}({', '.join(map(repr, given))})")

    def __str__(self) -> str:
        return self._text
