"""What an operation answers: a record for programs, and a sentence for people.

A number, a flag or a mapping is answered under the name that its row gives it, behind the address
of the object: ``{"stream": "rides", "group": "mail", "acked": 2}``. What returns nothing is
answered by true under that name, or by the address alone. A record of the library is answered field
by field.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from types import NoneType
from typing import Any, cast, get_args

import msgspec

from headwater.doors.catalogue import Declared
from headwater.kernel.declaring import facts_of
from headwater.kernel.headers import LIST_BYTES
from headwater.views.record import Mirror, View, mirror, shown_as, view_of


async def asked(operation: Declared, target: Any, names: Sequence[str], given: Any) -> Any:
    """Do an operation as servers do: no more than 4 MiB, and only on an object that exists.

    Raises what says that the object is not there.
    """
    kind, names = operation.kind, names[: len(operation.kind.keys)]
    if operation.row.known and not kind.exists(await getattr(target, kind.state)()):
        raise kind.unknown(*names)
    value = operation.call(target, given, LIST_BYTES)
    if operation.yields:
        return await _first(value, given.get("count", 100))
    value = await value
    if operation.verb == kind.state and not kind.exists(value):
        raise kind.unknown(*names)
    return value


async def _first(rows: AsyncGenerator[Any], count: int) -> list[Any]:
    """Return the first rows, up to so many and up to 4 MiB of members."""
    found: list[Any] = []
    room = LIST_BYTES
    async with aclosing(rows):
        async for row in rows:
            found.append(row)
            room -= len(row.member)
            if len(found) == count or room <= 0:
                break
    return found


@cache
def reply_type(operation: Declared) -> type[View]:
    """Return the type of what an operation answers."""
    name = f"{_camel(operation.kind.name)}{_camel(operation.verb)}View"
    address = dict.fromkeys(operation.keys, str)
    if operation.row.result or operation.returns is None:
        fields: list[Any] = [*address.items()]
        if operation.row.result:
            fields.append((operation.row.result, _result(operation)[0]))
        said = {"__doc__": f"What ``{operation.verb}`` answers. {operation.summary}"}
        made = msgspec.defstruct(
            name, fields, bases=(View,), namespace=said, frozen=True, kw_only=True
        )
        return cast(type[View], made)
    record = _record(operation.returns)
    if {"name", *address} & {*facts_of(record)}:
        # It names its object itself.
        return view_of(record)
    return mirror(name, record, first=address)


def _result(operation: Declared) -> tuple[Any, Callable[[Any], Any] | None]:
    if operation.returns is None:
        return bool, lambda _: True
    if operation.yields:
        return shown_as(list[operation.rows])  # type: ignore[name-defined]
    return shown_as(operation.returns)


def _record(returns: Any) -> Any:
    """Return the type of a record that may be None, of an object that does not exist."""
    return next((one for one in get_args(returns) if one is not NoneType), returns)


def reply(operation: Declared, names: Sequence[str], value: Any) -> View:
    """Return what an operation on the object of that address answers; raises when it must exist."""
    if operation.row.must and not value:
        raise operation.kind.unknown(*names)
    made = reply_type(operation)
    address = dict(zip(operation.keys, names, strict=True))
    if operation.row.result:
        show = _result(operation)[1]
        return made(**address, **{operation.row.result: value if show is None else show(value)})
    if operation.returns is None:
        return made(**address)
    fitting = {name: fact for name, fact in address.items() if name in made.__struct_fields__}
    return cast(type[Mirror], made).of(value, **fitting)


def sentence(operation: Declared, names: Sequence[str], value: Any) -> str:
    """Return what an operation did, as a sentence."""
    row = operation.row
    if not row.says:
        return ""
    facts: dict[str, Any] = dict(zip(operation.keys, names, strict=True))
    if row.result:
        facts[row.result] = shown(value)
    elif operation.returns is not None:
        facts["record"] = value
        facts |= {
            name: shown(getattr(value, name)) for name in facts_of(_record(operation.returns))
        }
    return (row.says_not if row.says_not and not value else row.says).format(**facts)


class Counted(int):
    """A number that sentences count things by: ``{acked:message}`` is 1 message, 2 messages."""

    def __format__(self, noun: str) -> str:
        if not noun:
            return str(int(self))
        return f"{int(self)} {noun}" if self == 1 else f"{int(self)} {noun}s"


def shown(value: Any) -> Any:
    """Return a result as sentences show it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return Counted(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}:{shown(item)}" for name, item in value.items())
    return value


def _camel(name: str) -> str:
    return "".join(word.title() for word in name.split("_"))
