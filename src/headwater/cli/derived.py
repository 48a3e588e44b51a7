"""Commands that are derived from the catalogue: open, call, say.

The address comes first, as arguments, then what the method takes by position; what it takes by
name is an option. The table in ``declared.py`` is made of the catalogue, so that help needs no
client; a command that runs finds its operation in the catalogue itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from headwater.cli import completing, options, output
from headwater.cli.options import AsJson, StoreUrl, Yes, confirm
from headwater.doors.catalogue import Kind
from headwater.kernel.declaring import Shape

if TYPE_CHECKING:
    from headwater.doors.catalogue import Declared

DOOR: Final = "command line"
# Opens an object that exists, by the URL of the store and the names of its address.
Opened = Callable[..., AbstractContextManager[Any]]

_TYPES: Final[dict[str, Any]] = {"int": int, "bool": bool, "str": str, "float": float}
_COMPLETED: Final[dict[str, Any]] = {
    "stream": completing.streams,
    "topic": completing.topics,
    "group": completing.groups,
    "queue": completing.queues,
}
_METAVARS: Final = {
    Shape.OFFSETS.value: "OFFSET...",
    Shape.OFFSETS_BY_PARTITION.value: "OFFSET...",
    Shape.POSITION.value: "TO",
}
_STEPS: Final = (
    "An offset, first, last, a time like 2030-01-31T12:00:00Z, or -1000 or +1000: so many "
    "messages back or on from the present position."
)
_EMPTY: Final = inspect.Parameter.empty


class Word(NamedTuple):
    """An argument or an option of a command; see Param and Parameter for what its fields mean."""

    called: str
    kind: str
    shape: str
    help: str
    metavar: str
    least: int | None
    most: int | None
    default: int | str | bool | None
    required: bool
    variadic: bool
    keyword: bool
    optional: bool


class Declaration(NamedTuple):
    """A command: its name, the operation it calls, its help, and whether it asks before."""

    name: str
    verb: str
    help: str
    asks: bool
    words: list[Word]


def add_commands(app: typer.Typer, kind: Kind, opened: Opened) -> None:
    """Add a command to a group of commands for each operation of a kind."""
    from headwater.cli.declared import DECLARED

    for declaration in DECLARED[kind.name]:
        steps = any(word.shape == Shape.POSITION.value for word in declaration.words)
        settings = options.TAKES_STEPS if steps else None
        run = _command(declaration, kind, opened)
        app.command(declaration.name, context_settings=settings)(run)


def _command(declaration: Declaration, kind: Kind, opened: Opened) -> Callable[..., None]:
    keys = kind.keys

    def run(store: str | None, as_json: bool, yes: bool = False, **words: Any) -> None:
        operation = kind.operation(declaration.verb)
        names = [words.pop("name"), *(words.pop(key) for key in keys[1:])]
        given = {
            word.called: _value(word, words[word.called])
            for word in declaration.words
            if words[word.called] is not None or not word.optional
        }
        with opened(store, *names) as target:
            for called, value in given.items():
                if isinstance(value, options.Steps):
                    given[called] = options.from_here(value, target.info().next)
            if operation.row.asks:
                facts = dict(zip(keys, names, strict=True))
                confirm(operation.row.asks.format(info=_Sums(target.info()), **facts), yes)
            answer(operation, names, operation.call(target, given), as_json)

    parameters = [_named(key, at) for at, key in enumerate(keys)]
    parameters += [_parameter(word) for word in declaration.words]
    if declaration.asks:
        parameters.append(_keyword("yes", Yes, False))
    parameters += [_keyword("store", StoreUrl, None), _keyword("as_json", AsJson, False)]
    run.__name__, run.__doc__ = f"{declaration.verb}_{kind.name}", declaration.help
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def answer(operation: Declared, names: Sequence[str], value: Any, as_json: bool) -> None:
    """Print what an operation on the object of that address returned."""
    from headwater.doors.replies import reply, sentence

    made = reply(operation, names, value)
    output.answer(made, sentence(operation, names, value), as_json)


class _Sums:
    """What is known of an object; of one with partitions, the sums."""

    def __init__(self, info: Any) -> None:
        self._parts = info if isinstance(info, list) else [info]

    def __getattr__(self, name: str) -> int:
        return sum(getattr(part, name) for part in self._parts)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def _named(key: str, at: int) -> inspect.Parameter:
    """Return the parameter of a name of the address; completion knows the first as ``name``."""
    argument = typer.Argument(
        metavar=key.upper(),
        help=f"Name of the {key}.",
        show_default=False,
        autocompletion=_COMPLETED.get(key),
    )
    return _keyword(key if at else "name", Annotated[str, argument], _EMPTY)


def _parameter(word: Word) -> inspect.Parameter:
    kind = _TYPES[word.kind]
    metavar = _METAVARS.get(word.shape, word.metavar or None)
    help = _STEPS if word.shape == Shape.POSITION.value else word.help
    if word.variadic or (word.required and not word.keyword):
        note: Any = typer.Argument(metavar=metavar, help=help, show_default=False)
        return _keyword(word.called, Annotated[list[str] if word.variadic else kind, note], _EMPTY)
    bounds: dict[str, Any] = {"min": word.least, "max": word.most} if kind is int else {}
    note = typer.Option(
        "--" + word.called.replace("_", "-"),
        metavar=metavar,
        help=help,
        show_default=word.default is not None,
        **bounds,
    )
    kind = kind | None if word.optional else kind
    return _keyword(word.called, Annotated[kind, note], _EMPTY if word.required else word.default)


def _value(word: Word, typed: Any) -> Any:
    """Return what was typed as the operation takes it."""
    match Shape(word.shape):
        case Shape.OFFSETS:
            return options.offsets(typed)
        case Shape.OFFSETS_BY_PARTITION:
            return options.in_topic(typed)
        case Shape.POSITION:
            return options.target(typed)
    return typed
