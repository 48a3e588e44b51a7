"""Commands that are derived from the catalogue.

Behind the address come parameters that must be given, then options, each with its word, then what
may be given often: ``TNACK key group [DELAY delay-ms] offset [offset ...]``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Final

from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.kernel.declaring import Scope, Shape
from headwater.serve.resp.arguments import Arguments, int_of, span_of, start_of, text_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import syntax_error

DOOR: Final = "RESP"
_SPELLED: Final = {
    Shape.OFFSETS: "offset|start-end",
    Shape.OFFSETS_BY_PARTITION: "partition:offset|partition:start-end",
    Shape.POSITION: "FIRST|LAST|offset",
    Shape.POSITION_BY_PARTITION: "FIRST|LAST|offset|partition:offset",
}
Look = Callable[[RespSession, Words], Awaitable[Any]]


def commands_of(kind: Kind, look: Look) -> list[RespCommand]:
    """Return the commands of the operations of a kind; ``look`` shows an object to the audit."""
    return [_command(one, look) for one in kind.operations(asyncio=True) if one.is_in(DOOR)]


def _command(operation: Declared, look: Look) -> RespCommand:
    kind = operation.kind
    name = operation.row.resp or kind.letters + operation.verb.replace("_", "").upper()
    rest = [one for one in operation.parameters if _takes_rest(one)]
    needed = [one for one in operation.parameters if one.required and not _takes_rest(one)]
    options = {_word(one): one for one in operation.parameters if not one.required}
    syntax = ["key", *kind.keys[1:], *map(_spelled, needed)]
    syntax += [
        f"[{word}]" if one.kind is bool else f"[{word} {_spelled(one)}]"
        for word, one in options.items()
    ]
    syntax += [f"{_spelled(one)} [{_spelled(one)} ...]" for one in rest]
    least = 1 + len(kind.keys) + len(needed) + len(rest)

    async def run(session: RespSession, words: Words) -> Any:
        arguments = Arguments(words)
        names = [arguments.text() for _ in kind.keys]
        given = {one.called: _value(one, arguments) for one in needed}
        while (word := arguments.take_option(*options)) is not None:
            one = options[word]
            given[one.called] = True if one.kind is bool else _value(one, arguments)
        for one in rest:
            if not arguments:
                raise wrong_arity(name)
            given[one.called] = _values(one, arguments.rest())
        arguments.end()
        client = session.door.client
        if kind.check is not None:
            await client.store.run(kind.check(*names))
        target = kind.open(client, *names)
        if operation.row.known:
            await target.info()
        return spelled_reply(await operation.call(target, given))

    run.__name__, run.__doc__ = name.lower(), operation.summary
    return RespCommand(
        name,
        -least if options or rest else least,
        operation.row.scope,
        -1,
        kind.command,
        " ".join(syntax),
        operation.summary,
        run,
        look=look if operation.row.scope is Scope.ADMIN else None,
    )


def _takes_rest(parameter: Parameter) -> bool:
    return parameter.variadic or parameter.says.shape is Shape.POSITION_BY_PARTITION


def _word(parameter: Parameter) -> str:
    """Return the word before an option: DELAY for ``delay_ms``."""
    bare = parameter.called.removesuffix("_ms").replace("_", "")
    return parameter.says.word or bare.upper()


def _spelled(parameter: Parameter) -> str:
    return _SPELLED.get(parameter.says.shape, parameter.called.replace("_", "-"))


def _value(parameter: Parameter, arguments: Arguments) -> Any:
    """Read one argument."""
    match parameter.says.shape:
        case Shape.POSITION:
            return start_of(arguments.take())
        case Shape.MS:
            return arguments.number()
    if parameter.kind is int:
        return arguments.number()
    return arguments.take() if parameter.kind is bytes else arguments.text()


def _values(parameter: Parameter, words: Words) -> Any:
    """Read all arguments that are left."""
    match parameter.says.shape:
        case Shape.OFFSETS:
            return [span_of(word) for word in words]
        case Shape.OFFSETS_BY_PARTITION:
            spans: dict[int, list[tuple[int, int]]] = {}
            for word in words:
                partition, span = _in_partition(word)
                spans.setdefault(partition, []).append(span_of(span))
            return spans
        case Shape.POSITION_BY_PARTITION:
            return _positions(words)
    return [text_of(word) for word in words]


def _positions(words: Words) -> Any:
    """Return one position for all partitions, or one for each that is named."""
    if len(words) == 1 and b":" not in words[0]:
        return start_of(words[0])
    return {partition: start_of(to) for partition, to in map(_in_partition, words)}


def _in_partition(word: bytes) -> tuple[int, bytes]:
    partition, colon, rest = word.partition(b":")
    if not colon:
        raise syntax_error()
    return int_of(partition), rest


def spelled_reply(value: Any) -> Any:
    """Return what an operation returned as a reply: flags as 1 and 0, records as maps."""
    if isinstance(value, bool):
        return int(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {name.replace("_", "-"): spelled_reply(item) for name, item in asdict(value).items()}
    if isinstance(value, Mapping):
        return [
            [name, *item] if isinstance(item, tuple) else [name, spelled_reply(item)]
            for name, item in sorted(value.items())
        ]
    return list(value) if isinstance(value, tuple) else value
