"""Commands that are derived from the catalogue.

Behind the address come parameters that must be given, then options, each with its word, then what
may be given often: ``TNACK key group [DELAY delay-ms] offset [offset ...]``. A record replaces all
that was there. So its command needs a word: ``OFF`` stands for nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, Final

import msgspec

from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.doors.replies import asked
from headwater.kernel.declaring import Scope, Spelling, facts_of
from headwater.serve.resp.arguments import Arguments, int_of, scores_of, span_of, start_of, text_of
from headwater.serve.resp.commands import RespCommand, Words, wrong_arity
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.replies import OK, syntax_error

DOOR: Final = "RESP"
_facts_of = cache(facts_of)
_SPELLED: Final = {
    Spelling.OFFSETS: "offset|start-end",
    Spelling.OFFSETS_BY_PARTITION: "partition:offset|partition:start-end",
    Spelling.POSITION: "FIRST|LAST|offset",
    Spelling.POSITION_BY_PARTITION: "FIRST|LAST|offset|partition:offset",
    Spelling.MEMBERS: "member",
    Spelling.SCORES: "score member",
    Spelling.TIME: "ms",
}
# Most replies are one of these, and go out as they are.
_PLAIN: Final = frozenset((int, float, str, bytes, type(None)))
Look = Callable[[RespSession, Words], Awaitable[Any]]


def commands_of(kind: Kind, look: Look | None = None) -> list[RespCommand]:
    """Return the commands of the operations of a kind.

    ``look`` shows an object to the audit, unless the kind has an operation for that.
    """
    operations = [one for one in kind.operations(asyncio=True) if one.is_in(DOOR)]
    return [_command(one, look or look_of(kind)) for one in operations]


def look_of(kind: Kind) -> Look:
    """Return what shows the state of an object."""
    state = next(one for one in kind.operations(asyncio=True) if one.verb == kind.state)
    show, length = _command(state, None).handler, 1 + len(kind.keys)

    def look(session: RespSession, words: Words) -> Awaitable[Any]:
        # The name of the command, and the address.
        return show(session, words[:length])

    return look


def _command(operation: Declared, look: Look | None) -> RespCommand:
    kind, keys = operation.kind, operation.kind.keys
    name = operation.row.resp or kind.letters + operation.verb.replace("_", "").upper()
    rest = [one for one in operation.taken_by(DOOR) if _takes_rest(one)]
    options = options_of(operation)
    needed = [one for one in operation.taken_by(DOOR) if one.required and one not in rest]
    replaces = any(not record.optional for record in operation.records.values())
    syntax = ["key", *keys[1:], *map(_spelled, needed), *(["[OFF]"] if replaces else [])]
    syntax += spelled_options(options)
    syntax += [
        f"[{_spelled(one)} ...]" if not one.required else f"{_spelled(one)} [{_spelled(one)} ...]"
        for one in rest
    ]
    spelled = sum(len(_spelled(one).split()) for one in rest if one.required)
    least = 1 + len(keys) + len(needed) + spelled + replaces

    # What is checked may be created anew, what is changed by somebody is opened for them, and what
    # has wishes is opened as it is wished for.
    shared = kind.check is None and not kind.collection and not kind.wishes

    async def run(session: RespSession, words: Words) -> Any:
        arguments = Arguments(words)
        names = [arguments.text() for _ in keys]
        given = {one.called: _value(one, arguments) for one in needed}
        if replaces and arguments.take_option("OFF"):
            arguments.end()
        while options and (word := arguments.take_option(*options)) is not None:
            given |= read_option(options[word], arguments)
        for one in rest:
            if arguments:
                given[one.called] = _values(one, arguments.rest(), name)
            elif one.required:
                raise wrong_arity(name)
        arguments.end()
        client = session.door.client
        if operation.checks and kind.check is not None:
            await client.store.run(kind.check(*names))
        if shared:
            target = session.door.opened(kind, *names)
        else:
            more = operation.wishes(given)
            if kind.collection and session.grant:
                more["by"] = session.grant.holder
            target = kind.open(client, *names, **more)
        value = await asked(operation, target, names, given)
        if operation.returns is None:
            return 1 if operation.row.result else OK
        return spelled_reply(value)

    run.__name__, run.__doc__ = name.lower(), operation.server_summary
    return RespCommand(
        name,
        -least if options or rest else least,
        operation.row.scope,
        -1,
        kind.command.split()[-1],
        " ".join(syntax),
        operation.server_summary,
        run,
        look=look if operation.row.scope is Scope.ADMIN else None,
    )


def options_of(operation: Declared) -> dict[str, Parameter]:
    """Return the options of an operation, by their words."""
    taken = operation.taken_by(DOOR)
    return {_word(one): one for one in taken if not one.required and not _takes_rest(one)}


def spelled_options(options: Mapping[str, Parameter]) -> list[str]:
    """Return options as the syntax of a command has them."""
    return [
        f"[{word}]" if one.kind is bool else f"[{word} {_spelled(one)}]"
        for word, one in options.items()
    ]


def read_option(option: Parameter, arguments: Arguments) -> dict[str, Any]:
    """Read the value behind the word of an option; returns it by the option's name."""
    flag = option.kind is bool
    return {option.called: not option.default if flag else _value(option, arguments)}


def _takes_rest(parameter: Parameter) -> bool:
    whole = (Spelling.POSITION_BY_PARTITION, Spelling.SCORES)
    return parameter.listed or parameter.says.shape in whole


def _word(parameter: Parameter) -> str:
    """Return the word before an option: DELAY for ``delay_ms``."""
    bare = parameter.called.removesuffix("_ms").replace("_", "")
    return parameter.says.word or bare.upper()


def _spelled(parameter: Parameter) -> str:
    if parameter.says.shape is Spelling.TEXTS:
        return parameter.called.removesuffix("s")
    bare = parameter.says.metavar.lower() or parameter.called.replace("_", "-")
    return _SPELLED.get(parameter.says.shape, bare)


def _value(parameter: Parameter, arguments: Arguments) -> Any:
    """Read one argument."""
    match parameter.says.shape:
        case Spelling.POSITION:
            return start_of(arguments.take())
        case Spelling.MS | Spelling.SPAN | Spelling.SIZE | Spelling.TIME:
            return arguments.number()
    if parameter.kind is int:
        return arguments.number()
    return arguments.take() if parameter.kind is bytes else arguments.text()


def _values(parameter: Parameter, words: Words, command: str) -> Any:
    """Read all arguments that are left."""
    match parameter.says.shape:
        case Spelling.OFFSETS:
            return [span_of(word) for word in words]
        case Spelling.OFFSETS_BY_PARTITION:
            spans: dict[int, list[tuple[int, int]]] = {}
            for word in words:
                partition, span = _in_partition(word)
                spans.setdefault(partition, []).append(span_of(span))
            return spans
        case Spelling.POSITION_BY_PARTITION:
            return _positions(words)
        case Spelling.MEMBERS:
            return list(words)
        case Spelling.SCORES:
            return scores_of(words, command)
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
    """Return what an operation returned as a reply: flags as 1 and 0, records as maps.

    In a list, records that are tuples are lists, and the parts of plain pairs follow each other.
    """
    if type(value) in _PLAIN:
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list) and value and type(value[0]) is tuple:
        return [part for pair in value for part in pair]
    if isinstance(value, list | tuple):
        return [spelled_reply(item) for item in value]
    if isinstance(value, Mapping) and all(type(name) is str for name in value):
        return {name: spelled_reply(item) for name, item in value.items()}
    if isinstance(value, Mapping):
        return [
            [name, *item] if isinstance(item, tuple) else [name, spelled_reply(item)]
            for name, item in sorted(value.items())
        ]
    if not (isinstance(value, msgspec.Struct) or is_dataclass(value)):
        return value
    names: Iterable[str] = _facts_of(type(value))  # type: ignore[arg-type]  # a class
    return {name.replace("_", "-"): _within(getattr(value, name)) for name in names}


def _within(value: Any) -> Any:
    """Return a part of a record: there a record that is a tuple is a map, too."""
    if hasattr(value, "_asdict"):
        return {name.replace("_", "-"): _within(item) for name, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_within(item) for item in value]
    return spelled_reply(value)
