"""Routes that are derived from the catalogue: an operation is one request of HTTP.

Parameters are fields of a JSON body, or of the query where a method has no body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING
from functools import cache
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.doors.replies import asked, reply, reply_type
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope, Spelling
from headwater.log.keys import MAX_PARTITIONS
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.databases import ServedDatabase
from headwater.serve.api.routes import Look, NoQuery, Route
from headwater.serve.fields import (
    GivenMembers,
    GivenOffsets,
    GivenScores,
    RangeOfOffsets,
    Start,
    members_of,
    scores_of,
)
from headwater.serve.http.messages import Refused
from headwater.views.record import Mirror, view_of

DOOR: Final = "HTTP"


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


def document_of(view: Mirror) -> Any:
    """Return the record that a request holds; raises InvalidInput for what is not base64."""
    try:
        return view.original()
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def _meant_by_partition(offsets: dict[int, Any]) -> dict[int, list[int | tuple[int, int]]]:
    """Return the offsets of a topic as the library takes them."""
    return {partition: meant(items) for partition, items in offsets.items()}


_SHAPES: Final[dict[Spelling, Any]] = {
    Spelling.OFFSETS: GivenOffsets,
    Spelling.OFFSETS_BY_PARTITION: OffsetsByPartition,
    Spelling.POSITION: Start,
    Spelling.POSITION_BY_PARTITION: Start | dict[Partition, Start],
    Spelling.MEMBERS: GivenMembers,
    Spelling.SCORES: GivenScores,
}
_NUMBERS: Final = (Spelling.MS, Spelling.SPAN, Spelling.TIME, Spelling.SIZE)
_MOST_TEXTS: Final = 10_000
_MEANT: Final[dict[Spelling, Callable[[Any], Any]]] = {
    Spelling.OFFSETS: meant,
    Spelling.OFFSETS_BY_PARTITION: _meant_by_partition,
    Spelling.MEMBERS: members_of,
    Spelling.SCORES: scores_of,
    Spelling.DOCUMENT: document_of,
}


def routes_of(kind: Kind, look: Look | None = None) -> list[Route]:
    """Return the routes of the operations of a kind.

    ``look`` shows an object to the audit, unless the kind has an operation for that.
    """
    operations = [one for one in kind.operations(asyncio=True) if one.is_in(DOOR)]
    return [_route(one, look or look_of(kind)) for one in operations]


def look_of(kind: Kind) -> Look:
    """Return what shows the state of an object."""
    state = next(one for one in kind.operations(asyncio=True) if one.verb == kind.state)
    return _route(state, None).run


def _route(operation: Declared, look: Look | None) -> Route:
    method, _, end = (operation.row.http or f"POST {operation.verb}").partition(" ")
    fields = fields_type(operation)
    sent_in = "query" if method in ("GET", "DELETE") else "body"

    async def run(call: ApiCall) -> msgspec.Struct:
        sent = getattr(call, sent_in)
        given = given_in(sent, operation)
        given |= zip(operation.in_path, call.names[len(operation.kind.keys) :], strict=True)
        wishes = operation.wishes(given)
        target = await opened(call, operation.kind, check=operation.checks, **wishes)
        return reply(operation, call.names, await asked(operation, target, call.names, given))

    run.__name__, run.__doc__ = operation.id, operation.server_summary
    return Route(
        method,
        operation.kind.path + (end and f"/{end}"),
        run,
        operation.row.scope,
        query=fields if _sent(operation) and sent_in == "query" else NoQuery,
        body=fields if sent_in == "body" else None,
        answer=reply_type(operation),
        look=look if operation.row.scope is Scope.ADMIN else None,
    )


@cache
def _sent(operation: Declared) -> tuple[Parameter, ...]:
    """Return the parameters of an operation that are not in its path."""
    return tuple(one for one in operation.taken_by(DOOR) if one.called not in operation.in_path)


def given_in(asked: Any, operation: Declared) -> dict[str, Any]:
    """Return what a request gives for the parameters of an operation, as ``call`` takes it."""
    given = {}
    for parameter in _sent(operation):
        value = getattr(asked, parameter.called)
        convert = None if value is None else _MEANT.get(parameter.says.shape)
        given[parameter.called] = value if convert is None else convert(value)
    return given


def served_database(call: ApiCall) -> ServedDatabase:
    """Return the database that is served; raises Refused, 404, without one."""
    if call.served.database is None:
        raise Refused(404, "this server was given no database; start it with --db URL")
    return call.served.database


async def opened(call: ApiCall, kind: Kind, *, check: bool = True, **wishes: Any) -> Any:
    """Return the object that a request names; raises what says that it is not there."""
    names = call.names[: len(kind.keys)]
    if kind.database:
        return served_database(call).opened(kind, *names)
    if check and kind.check is not None:
        await call.hw.store.run(kind.check(*names))
    if kind.collection:
        wishes["by"] = call.grant.holder
    return kind.open(call.hw, *names, **wishes)


def fields_type(operation: Declared, *more: Any) -> type[msgspec.Struct]:
    """Return the type of the parameters; ``more`` are further fields."""
    fields: list[Any] = []
    for parameter in _sent(operation):
        kind, default = _json_type(parameter), parameter.default
        if parameter.variadic and default is not MISSING:
            default = msgspec.field(default_factory=list)
        if parameter.says.per_request is not None:
            default = parameter.says.per_request
        elif parameter.optional:
            kind |= None
        fields.append((parameter.called, kind, *([] if default is MISSING else [default])))
    name = "".join(word.title() for word in operation.id.split("_"))
    return msgspec.defstruct(
        f"{name}Body",
        [*fields, *more],
        namespace={"__doc__": f"What ``{operation.id}`` takes."},
        forbid_unknown_fields=True,
        kw_only=True,
    )


def _json_type(parameter: Parameter) -> Any:
    says = parameter.says
    if says.shape in _SHAPES:
        return _SHAPES[says.shape]
    if says.shape is Spelling.TEXTS:
        return Annotated[list[str], Meta(max_length=_MOST_TEXTS, description=says.help)]
    if says.shape is Spelling.DOCUMENT:
        return view_of(parameter.kind)
    kind = int if says.shape in _NUMBERS else parameter.kind
    said = f"{says.help} In ms since 1970." if says.shape is Spelling.TIME else says.help
    bounds: dict[str, Any] = {} if kind is not int else {"ge": says.least, "le": says.most}
    return Annotated[kind, Meta(description=said or None, **bounds)]
