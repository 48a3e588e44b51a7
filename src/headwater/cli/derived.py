"""Commands that are derived from the catalogue: open, call, say.

The address comes first, as arguments, then what the method takes by position; what it takes by
name is an option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import MISSING
from typing import Annotated, Any, Final, get_type_hints

import typer

from headwater.cli import completing, options, output
from headwater.cli.options import AsJson, StoreUrl, Yes, confirm
from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.doors.replies import Counted, reply, sentence
from headwater.kernel.declaring import Shape

DOOR: Final = "command line"
# Opens an object that exists, by the URL of the store and the names of its address.
Opened = Callable[..., AbstractContextManager[Any]]

_COMPLETED: Final[dict[str, Any]] = {
    "stream": completing.streams,
    "topic": completing.topics,
    "group": completing.groups,
    "queue": completing.queues,
}
_ARGUMENTS: Final = {
    Shape.OFFSETS: ("OFFSET...", "Offsets, as 5, and ranges, as 5-9."),
    Shape.OFFSETS_BY_PARTITION: (
        "OFFSET...",
        "Partitions and offsets, as 3:5, and ranges, as 3:5-9.",
    ),
    Shape.POSITION: (
        "TO",
        "An offset, first, last, a time like 2030-01-31T12:00:00Z, or -1000 or +1000: so many "
        "messages back or on from the present position.",
    ),
}


def add_commands(app: typer.Typer, kind: Kind, opened: Opened) -> None:
    """Add a command to a group of commands for each operation of a kind."""
    for operation in kind.operations(asyncio=False):
        if operation.is_in(DOOR):
            name = operation.row.command or operation.verb.replace("_", "-")
            steps = any(one.says.shape is Shape.POSITION for one in operation.parameters)
            settings = options.TAKES_STEPS if steps else None
            app.command(name, context_settings=settings)(_command(operation, opened))


def _command(operation: Declared, opened: Opened) -> Callable[..., None]:
    keys = operation.kind.keys

    def run(store: str | None, as_json: bool, yes: bool = False, **words: Any) -> None:
        names = [words.pop("name"), *(words.pop(key) for key in keys[1:])]
        given = given_of(operation, words)
        with opened(store, *names) as target:
            for one in operation.parameters:
                if isinstance(given.get(one.called), options.Steps):
                    here = target.info().next
                    given[one.called] = options.from_here(given[one.called], here)
            if operation.row.asks:
                facts = dict(zip(keys, names, strict=True))
                confirm(operation.row.asks.format(info=_Sums(target.info()), **facts), yes)
            value = operation.call(target, given)
            names += [given[name] for name in operation.in_path]
            answer(operation, names, value, as_json)

    parameters = [_named(key, at) for at, key in enumerate(keys)]
    parameters += parameters_of(operation)
    if operation.row.asks:
        parameters.append(_keyword("yes", Yes, False))
    parameters += [_keyword("store", StoreUrl, None), _keyword("as_json", AsJson, False)]
    run.__name__, run.__doc__ = operation.id, operation.description
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def parameters_of(operation: Declared) -> list[inspect.Parameter]:
    """Return the arguments and options of an operation, without its address."""
    return [_parameter(one) for one in operation.parameters]


def given_of(operation: Declared, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given for parameters, as ``Declared.call`` takes it."""
    return {
        one.called: _value(one, words[one.called])
        for one in operation.parameters
        if words[one.called] is not None or not one.optional
    }


def answer(operation: Declared, names: Sequence[str], value: Any, as_json: bool) -> None:
    """Print what an operation on the object of that address returned."""
    made = reply(operation, names, value)
    output.answer(made, sentence(operation, names, value), as_json)


def taking(operation: Declared) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command that is written by hand take the options of an operation, as ``**given``."""
    taken = parameters_of(operation)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        name, *own = (
            _keyword(one.name, hints[one.name], one.default)
            for one in inspect.signature(command).parameters.values()
            if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        parameters = [name, *taken, *own]

        def run(**words: Any) -> None:
            given = given_of(operation, words)
            command(**{one.name: words[one.name] for one in (name, *own)}, **given)

        run.__name__, run.__doc__ = operation.id, command.__doc__
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


class _Sums:
    """What is known of an object, as numbers; of one with partitions, of all of them."""

    def __init__(self, info: Any) -> None:
        self._parts = info if isinstance(info, list) else [info]

    def __getattr__(self, name: str) -> Counted:
        facts = [getattr(part, name) for part in self._parts]
        if all(isinstance(fact, int) for fact in facts):
            return Counted(sum(facts))
        return Counted(len(set().union(*facts)))


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    empty = inspect.Parameter.empty
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=annotation,
        default=empty if default is MISSING else default,
    )


def _named(key: str, at: int) -> inspect.Parameter:
    """Return the parameter of a name of the address; completion knows the first as ``name``."""
    argument = typer.Argument(
        metavar=key.upper(),
        help=f"Name of the {key}.",
        show_default=False,
        autocompletion=_COMPLETED.get(key),
    )
    return _keyword(key if at else "name", Annotated[str, argument], MISSING)


def _parameter(parameter: Parameter) -> inspect.Parameter:
    says = parameter.says
    kind: Any = int if says.shape is Shape.MS else parameter.kind
    if says.shape in (Shape.SPAN, Shape.SIZE):
        kind = str
    metavar, help = _ARGUMENTS.get(says.shape, (says.metavar or None, says.help))
    if says.shape in _ARGUMENTS:
        kind = str
    if parameter.variadic:
        note: Any = typer.Argument(metavar=metavar, help=says.help or help, show_default=False)
        return _keyword(parameter.called, Annotated[list[str], note], MISSING)
    if not parameter.keyword and parameter.required:
        metavar = metavar or parameter.called.upper()
        note = typer.Argument(metavar=metavar, help=help, show_default=False)
        return _keyword(parameter.called, Annotated[kind, note], MISSING)
    off = f"/--{says.word.lower()}" if parameter.default is True else ""
    bounds: dict[str, Any] = {"min": says.least, "max": says.most} if kind is int else {}
    note = typer.Option(
        parameter.option + off,
        metavar=metavar,
        help=help,
        show_default=parameter.default not in (None, MISSING),
        **bounds,
    )
    kind = kind | None if parameter.optional else kind
    return _keyword(parameter.called, Annotated[kind, note], parameter.default)


def _value(parameter: Parameter, word: Any) -> Any:
    match parameter.says.shape:
        case Shape.SPAN if word is not None:
            return options.duration_ms(word, parameter.option)
        case Shape.SIZE if word is not None:
            return options.size_bytes(word, parameter.option)
        case Shape.OFFSETS:
            return options.offsets(word)
        case Shape.OFFSETS_BY_PARTITION:
            return options.in_topic(word)
        case Shape.POSITION:
            return options.target(word)
    return word
