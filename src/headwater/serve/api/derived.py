"""Routes that are derived from the catalogue: an operation is one request of HTTP.

Parameters are fields of a JSON body, or of the query where a method has no body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.doors.replies import reply, reply_type
from headwater.kernel.declaring import Scope, Shape
from headwater.log.keys import MAX_PARTITIONS
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.fields import Offset, Start
from headwater.serve.api.routes import Look, NoQuery, Route

DOOR: Final = "HTTP"


class RangeOfOffsets(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A range of offsets, both ends included."""

    first: Offset
    last: Offset


# Not pairs for ranges: msgspec 0.22 crashes on unions of numbers with bounds and tuples.
GivenOffsets = Annotated[
    list[Offset | RangeOfOffsets],
    Meta(max_length=10_000, description="Offsets, and ranges of them."),
]
Partition = Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS, description="A partition, from 0 on.")]
OffsetsByPartition = Annotated[
    dict[Partition, GivenOffsets],
    Meta(description='Offsets, and ranges of them, by partition: {"0": [5, 6]}.'),
]


def meant(offsets: list[int | RangeOfOffsets]) -> list[int | tuple[int, int]]:
    """Return the offsets of a request as the library takes them."""
    return [
        (item.first, item.last) if isinstance(item, RangeOfOffsets) else item for item in offsets
    ]


def meant_by_partition(offsets: dict[int, Any]) -> dict[int, list[int | tuple[int, int]]]:
    """Return the offsets of a topic as the library takes them."""
    return {partition: meant(items) for partition, items in offsets.items()}


_SHAPES: Final[dict[Shape, Any]] = {
    Shape.OFFSETS: GivenOffsets,
    Shape.OFFSETS_BY_PARTITION: OffsetsByPartition,
    Shape.POSITION: Start,
    Shape.POSITION_BY_PARTITION: Start | dict[Partition, Start],
}
_MEANT: Final[dict[Shape, Callable[[Any], Any]]] = {
    Shape.OFFSETS: meant,
    Shape.OFFSETS_BY_PARTITION: meant_by_partition,
}


def routes_of(kind: Kind, look: Look) -> list[Route]:
    """Return the routes of the operations of a kind; ``look`` shows an object to the audit."""
    return [_route(one, look) for one in kind.operations(asyncio=True) if one.is_in(DOOR)]


def _route(operation: Declared, look: Look) -> Route:
    method, _, end = (operation.row.http or f"POST {operation.verb}").partition(" ")
    fields = _fields_type(operation)
    sent_in = "query" if method in ("GET", "DELETE") else "body"

    async def run(call: ApiCall) -> msgspec.Struct:
        asked = getattr(call, sent_in)
        given = {}
        for parameter in operation.parameters:
            value = getattr(asked, parameter.called)
            convert = _MEANT.get(parameter.says.shape)
            given[parameter.called] = value if convert is None else convert(value)
        target = await opened(call, operation.kind)
        if operation.row.known:
            await target.info()
        return reply(operation, call.names, await operation.call(target, given))

    run.__name__, run.__doc__ = operation.id, operation.summary
    return Route(
        method,
        operation.kind.path + (end and f"/{end}"),
        run,
        operation.row.scope,
        query=fields if operation.parameters and sent_in == "query" else NoQuery,
        body=fields if sent_in == "body" else None,
        answer=reply_type(operation),
        look=look if operation.row.scope is Scope.ADMIN else None,
    )


async def opened(call: ApiCall, kind: Kind) -> Any:
    """Return the object that a request names; raises what says that it is not there."""
    if kind.check is not None:
        await call.hw.store.run(kind.check(*call.names))
    return kind.open(call.hw, *call.names)


def _fields_type(operation: Declared) -> type[msgspec.Struct]:
    """Return the type of the parameters."""
    fields: list[Any] = []
    for parameter in operation.parameters:
        kind = _json_type(parameter)
        kind = kind | None if parameter.optional else kind
        default = [] if parameter.default is MISSING else [parameter.default]
        fields.append((parameter.called, kind, *default))
    name = "".join(word.title() for word in operation.id.split("_"))
    return msgspec.defstruct(
        f"{name}Body",
        fields,
        namespace={"__doc__": f"What ``{operation.id}`` takes."},
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _json_type(parameter: Parameter) -> Any:
    says = parameter.says
    if says.shape in _SHAPES:
        return _SHAPES[says.shape]
    kind = int if says.shape is Shape.MS else parameter.kind
    bounds: dict[str, Any] = {} if kind is not int else {"ge": says.least, "le": says.most}
    return Annotated[kind, Meta(description=says.help or None, **bounds)]
