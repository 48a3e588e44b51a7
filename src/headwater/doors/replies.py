"""What an operation answers: a record for programs, and a sentence for people.

A number, a flag or a mapping is answered under the name that its row gives it, behind the address
of the object: ``{"stream": "rides", "group": "mail", "acked": 2}``. What returns nothing is
answered by true under that name, or by the address alone. A record of the library is answered field
by field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast, get_args

import msgspec

from headwater.doors.catalogue import Declared
from headwater.views.record import View, copied, mirror


@cache
def reply_type(operation: Declared) -> type[View]:
    """Return the type of what an operation answers."""
    name = f"{_camel(operation.kind.name)}{_camel(operation.verb)}View"
    address = dict.fromkeys(operation.keys, str)
    if operation.row.result or operation.returns is None:
        fields: list[Any] = [*address.items()]
        if operation.row.result:
            fields.append((operation.row.result, _result_type(operation)))
        said = {"__doc__": f"What ``{operation.verb}`` answers. {operation.summary}"}
        made = msgspec.defstruct(
            name, fields, bases=(View,), namespace=said, frozen=True, kw_only=True
        )
        return cast(type[View], made)
    return mirror(name, operation.returns, first=address)


def _result_type(operation: Declared) -> Any:
    """Return the type of a result; records by partition are shown field by field, too."""
    if operation.returns is None:
        return bool
    if (record := _partitioned(operation)) is not None:
        return dict[int, mirror(record.__name__, record)]  # type: ignore[misc]
    return operation.returns


@cache
def _partitioned(operation: Declared) -> Any:
    """Return the record that an operation returns for each partition; None for anything else."""
    kinds = get_args(operation.returns)
    record = kinds[-1] if len(kinds) == 2 and kinds[0] is int else None
    return record if hasattr(record, "_fields") else None


def reply(operation: Declared, names: Sequence[str], value: Any) -> View:
    """Return what an operation on the object of that address answers; raises when it must exist."""
    if operation.row.must and not value:
        raise operation.kind.unknown(*names)
    made = reply_type(operation)
    address = dict(zip(operation.keys, names, strict=True))
    if operation.row.result:
        value = True if operation.returns is None else value
        if _partitioned(operation) is not None:
            value = {place: record._asdict() for place, record in value.items()}
        return made(**address, **{operation.row.result: value})
    if operation.returns is None:
        return made(**address)
    return made(**copied(made, value, **address))


def sentence(operation: Declared, names: Sequence[str], value: Any) -> str:
    """Return what an operation did, as a sentence."""
    row = operation.row
    facts: dict[str, Any] = dict(zip(operation.keys, names, strict=True))
    if row.result:
        facts[row.result] = shown(value)
    elif operation.returns is not None:
        facts["record"] = value
        facts |= {name: shown(getattr(value, name)) for name in _fields(operation.returns)}
    return (row.says_not if row.says_not and not value else row.says).format(**facts)


def _fields(kind: Any) -> Sequence[str]:
    return tuple(kind.__dataclass_fields__) if is_dataclass(kind) else kind._fields


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
